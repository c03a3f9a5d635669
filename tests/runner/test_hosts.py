"""Two processes of four CPU devices each train one run, as two hosts would."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from purejaxrl_scale import config_io
from purejaxrl_scale.config import problems
from purejaxrl_scale.named_experiments import load_experiment
from purejaxrl_scale.runner import checkpoints, records, runner

SMALL = {
    "environment.num_envs": "16",
    "network.widths": "8",
    "algorithm.rollout_length": "4",
    "algorithm.minibatch_size": "32",
    "algorithm.epochs": "1",
    "monitors.samples": "64",
    "evaluation.num_envs": "8",
    "run.wandb": "disabled",
    "run.report": "false",
    "run.progress": "none",
}


def flags(**more: str) -> list[str]:
    fields = SMALL | {name.replace("__", "."): value for name, value in more.items()}
    return [word for name, value in fields.items() for word in (f"--{name}", value)]


def start_two(words: list[str]) -> list[subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "4", "NPROC": "16", "TF_CPP_MIN_LOG_LEVEL": "3"}
    host = ["--devices.coordinator", f"localhost:{port}", "--devices.processes", "2", "--devices.process"]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "purejaxrl_scale", *words, *host, str(process)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(2)
    ]


def ends(processes: list[subprocess.Popen], within: float) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each; they are killed after `within` seconds."""
    try:
        outputs = [process.communicate(timeout=within) for process in processes]
        return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def only_run(folder: Path) -> Path:
    (run,) = folder.iterdir()
    return run


def untimed(run: Path) -> list[dict]:
    lines = records.read(run / "metrics.jsonl")
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def test_two_processes_of_four_devices_are_one_of_eight(tmp_path):
    words = flags(total_steps=str(6 * 64), devices__exact_reduction="true")
    both = ends(start_two(["train", "cartpole", *words, "--run.folder", str(tmp_path / "two")]), 240)
    assert [code for code, _, _ in both] == [0, 0], both
    assert "record" not in both[1][1]
    fields = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    config, faults = config_io.override(load_experiment("cartpole"), fields | {"run.folder": str(tmp_path / "one")})
    assert not faults
    assert not problems(config)
    assert runner.train(config, "cartpole") == 0
    two, one = only_run(tmp_path / "two"), only_run(tmp_path / "one")
    assert config_io.load(two / "config.yaml").devices == config_io.load(one / "config.yaml").devices
    assert untimed(two) == untimed(one)
    assert len(untimed(two)) == 6
    assert records.read(two / "evaluations.jsonl") == records.read(one / "evaluations.jsonl")
    np.testing.assert_equal(checkpoints.restore(two, 6).leaves, checkpoints.restore(one, 6).leaves)


def wait_for(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def child_of(process: subprocess.Popen) -> int:
    found = subprocess.run(["pgrep", "-P", str(process.pid)], check=True, capture_output=True, text=True)
    return int(found.stdout.split()[0])


def test_one_that_waits_for_the_others_says_so_and_can_be_stopped(tmp_path):
    waiting, other = start_two(["train", "cartpole", *flags(), "--run.folder", str(tmp_path)])
    other.kill()
    other.communicate()
    assert "waiting for the other processes of this run at localhost:" in waiting.stderr.readline()
    waiting.send_signal(signal.SIGTERM)
    ((code, _, errors),) = ends([waiting], 30)
    assert (code, errors) == (75, "stopped by a signal\n")


@pytest.mark.slow
@pytest.mark.parametrize("dead", [0, 1])
def test_a_process_that_dies_ends_the_run_and_a_signal_to_one_stops_both(tmp_path, dead):
    """kill -9 of one, resume, SIGTERM of the other: nothing is lost and no outer step recorded twice."""
    words = flags(total_steps="10_000_000", checkpoint__every_seconds="0.5", run__chunk_seconds="0.2")
    processes = start_two(["train", "cartpole", *words, "--run.folder", str(tmp_path)])
    wait_for(lambda: any(checkpoints.steps(run) for run in tmp_path.iterdir()), 120)
    run = only_run(tmp_path)
    os.kill(child_of(processes[dead]), signal.SIGKILL)
    began = time.monotonic()
    codes = ends(processes, 60)
    assert time.monotonic() - began < 60
    assert [code for code, _, _ in codes] == [1, 1]
    assert "another" in codes[1 - dead][2]
    assert "resume" in codes[0][2]
    assert "resume" in codes[1][2]

    saved = checkpoints.steps(run)[-1]
    processes = start_two(["resume", str(run)])
    wait_for(lambda: checkpoints.steps(run)[-1] > saved, 120)
    processes[1].send_signal(signal.SIGTERM)
    codes = ends(processes, 60)
    assert [code for code, _, _ in codes] == [75, 75], codes
    assert "a signal to another process" in codes[0][1]
    steps = [line["outer_step"] for line in untimed(run)]
    assert steps == list(range(1, checkpoints.steps(run)[-1] + 1))


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_run(tmp_path):
    words = flags(total_steps="10_000_000", devices__patience_seconds="5", checkpoint__every_seconds="0.5")
    processes = start_two(["train", "cartpole", *words, "--run.folder", str(tmp_path)])
    wait_for(lambda: any(checkpoints.steps(run) for run in tmp_path.iterdir()), 120)
    os.kill(child_of(processes[1]), signal.SIGSTOP)
    code, _, errors = ends(processes[:1], 60)[0]
    os.kill(child_of(processes[1]), signal.SIGKILL)
    ends(processes[1:], 10)
    assert code == 1
    assert "hangs" in errors
