"""What goes wrong around a run: signals at bad moments, full disks, weights that are lost."""

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from purejaxrl_scale.runner import checkpoints, records, runner
from purejaxrl_scale.runner.session import Session
from tests.runner.test_runner import ROOT, metrics, only_run, replace


def start(tmp_path, body: str, **options) -> subprocess.Popen:
    """A process that trains a toy whose class is changed by `body`, and prints a line when it has come so far."""
    program = textwrap.dedent(
        """
        import signal, sys, time
        # Whoever runs the tests in the background may have had these ignored, and that would be heeded.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        import jax
        from tests.runner.conftest import ToyTrainer, toy_config
        import purejaxrl_scale.train
        from purejaxrl_scale.runner import runner

        class Slow(ToyTrainer):
        {body}

        purejaxrl_scale.train.make_train = Slow
        sys.exit(runner.train(toy_config({folder!r}), "slow"))
        """
    ).format(body=textwrap.indent(textwrap.dedent(body), "    "), folder=str(tmp_path / "runs"))
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT, **options)
    assert child.stdout.readline() == "here\n"
    return child


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_during_the_compilation_ends_the_process_at_once(tmp_path, name):
    child = start(
        tmp_path,
        """
        def lower_chunk(self, state):
            print("here", flush=True)
            time.sleep(300)
        """,
    )
    child.send_signal(getattr(signal, name))
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 75
    assert f"stopped by {name} at once; nothing is saved yet" in output


def within_a_chunk(tmp_path, seconds: int, first: str = "") -> subprocess.Popen:
    """A process in the middle of its first chunk, which takes so many seconds."""
    return start(
        tmp_path,
        """
        FIRST
        def lower_chunk(self, state):
            lowered = super().lower_chunk(state)

            class Late:
                def compile(self):
                    compiled = lowered.compile()

                    def chunk(state, outer_steps):
                        print("here", flush=True)
                        time.sleep(SECONDS)
                        return compiled(state, outer_steps)

                    return chunk

            return Late()
        """.replace("SECONDS", str(seconds)).replace("FIRST", first),
    )


def test_a_second_signal_does_not_wait_for_the_chunk(tmp_path):
    child = within_a_chunk(tmp_path, 300)
    child.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=2)  # it would finish the chunk and save
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 75
    assert "stopped by SIGINT at once" in output


def test_nohup_is_heeded(tmp_path):
    """A signal that was ignored when the run began stays ignored: the terminal may close."""
    child = within_a_chunk(tmp_path, 3, first="signal.signal(signal.SIGHUP, signal.SIG_IGN)")
    child.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 75
    assert "stopped by SIGTERM after" in output


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_echo_of_the_signal_is_no_second_one(tmp_path, name):
    """As where a group of processes is signalled, and one of them passes it on to another."""
    child = within_a_chunk(tmp_path, 3)
    child.send_signal(getattr(signal, name))
    time.sleep(0.3)
    child.send_signal(getattr(signal, name))
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 75
    assert "at once" not in output
    (run,) = (tmp_path / "runs").iterdir()
    assert checkpoints.steps(run)


def test_a_full_disk_is_told_in_words(config, trainers, monkeypatch, capsys):
    def full(path, lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(records, "append", full)
    assert runner.train(config, "x") == 1
    assert "the disk is full (No space left on device: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "the disk is full (No space left on device: "),
        (errno.EROFS, "the record cannot be written (Read-only file system: "),
        (errno.EACCES, "the record cannot be written (Permission denied: "),
    ],
)
def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(config, trainers, monkeypatch, capsys, code, words):
    """As TensorStore tells it, from a thread of its own: at the next save, or when the run waits for the last."""
    whole = checkpoints.Checkpoints.save

    def save(self, outer_step, leaves, meta):
        whole(self, outer_step, leaves, meta)
        self.wait()
        text = f"RESOURCE_EXHAUSTED: Failed to write 9 bytes: it failed [os_error_code='{code}']"

        def fail():
            raise ValueError(text)

        self._manager.wait_until_finished = fail

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.Checkpoints, "save", save)
        assert runner.train(config, "x") == 1
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    run = only_run(config)
    assert f"saved at outer step 20. Go on with: purejaxrl-scale resume {run}" in error
    assert runner.resume(run) == 0
    assert metrics(run)[-1]["outer_step"] == 20


def test_a_loss_that_is_not_finite_stops_the_run_and_is_not_saved(config, trainers, capsys):
    trainers.options = {"diverges_at": 13}
    config = replace(config, checkpoint={"every_seconds": 0.0})
    assert runner.train(config, "x") == 1
    error = capsys.readouterr().err
    assert "the loss is not finite at outer step" in error
    assert "a lower algorithm.learning_rate" in error
    run = only_run(config)
    saved = checkpoints.steps(run)
    assert 0 < saved[-1] < 13
    assert f"saved at outer step {saved[-1]}. Go on with" in error
    # The record shows how it came.
    assert metrics(run)[-1]["outer_step"] >= 13
    assert metrics(run)[-1]["loss/total"] is None


def test_one_diverged_member_does_not_stop_the_others(config, trainers, monkeypatch, capsys):
    record = Session._record

    def first_diverges(self, numbers, seconds, rated):
        numbers = dict(numbers)
        numbers["loss/total"] = numbers["loss/total"].copy()
        numbers["loss/total"][0] = float("nan")
        return record(self, numbers, seconds, rated)

    monkeypatch.setattr(Session, "_record", first_diverges)
    assert runner.train(dataclasses.replace(config, seeds=2), "x") == 0
    (remark,) = (line for line in capsys.readouterr().out.splitlines() if "has diverged" in line)
    assert remark.startswith("x-0-")
