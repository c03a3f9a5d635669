"""A run outlives whatever reads its output."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from purejaxrl_scale import cli, streams

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_opened_on_nothing(tmp_path, closed):
    """Otherwise the next file would get the number of stdout, and what libraries print."""
    program = (
        "from purejaxrl_scale import cli; assert cli.main(['list']) == 0; "
        f"f = open({str(tmp_path / 'record')!r}, 'w'); assert f.fileno() > 2; print('text'); f.write('safe'); f.close()"
    )
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, program], capture_output=True, text=True, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "record").read_text() == "safe"


class FullDisk(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_behind_the_output_does_not_stop_a_run(runs, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", FullDisk())
    assert cli.main(["train", "cartpole", "--devices.count", "1"]) == 75
    assert len(runs.configs) == 1
    # There is nothing to lose in other commands, which say what is the matter.
    assert cli.main(["list"]) == 1
    assert "failed: No space left on device" in capsys.readouterr().err


def test_a_reader_that_leaves_does_not_stop_a_run():
    """`train ... | head -1`: what is printed later goes nowhere, and the exit code is the run's own."""
    program = """
import sys
from purejaxrl_scale import streams

with streams.unfailing():
    print("first", flush=True)
    sys.stdin.read(1)
    for _ in range(3):
        print("later", flush=True)
sys.exit(75)
"""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, **pipes) as run:
        assert run.stdout.readline() == b"first\n"
        run.stdout.close()
        run.stdin.write(b"x")
        run.stdin.close()
        assert run.stderr.read() == b""
    assert run.returncode == 75


def test_streams_are_given_back():
    before = sys.stdout, sys.stderr
    with streams.unfailing():
        assert sys.stdout is not before[0]
        assert sys.stdout.isatty() == before[0].isatty()
    assert (sys.stdout, sys.stderr) == before
