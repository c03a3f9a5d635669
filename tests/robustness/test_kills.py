"""Runs that are killed at random moments and resumed end as if nothing had happened.

`uv run pytest -m robustness` kills 20 times; ROBUSTNESS_KILLS sets another number, ROBUSTNESS_SEED other moments.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from purejaxrl_scale.runner import checkpoints, records

KILLS = int(os.environ.get("ROBUSTNESS_KILLS", "20"))
SEED = int(os.environ.get("ROBUSTNESS_SEED", "0"))
COMMON = {
    "environment.num_envs": "16",
    "network.widths": "8",
    "algorithm.rollout_length": "8",
    "algorithm.minibatch_size": "64",
    "algorithm.epochs": "2",
    "monitors.samples": "64",
    "evaluation.num_envs": "8",
    "evaluation.max_steps": "60",
    "checkpoint.every_seconds": "0.3",
    "run.chunk_seconds": "0.1",
    "run.wandb": "disabled",
    "run.report": "false",
    "run.progress": "none",
}
# A chunk, and until a checkpoint that is written in the background lies on the disk.
SLACK_SECONDS = 2.0
# Drawn for each run, beside what it has to lose.
RANDOM = {
    "seed": range(1000),
    "algorithm.rollout_length": (4, 8, 16),
    "algorithm.epochs": (1, 2),
    "checkpoint.every_seconds": (0.2, 0.5),
    "run.chunk_seconds": (0.05, 0.2),
    "environment.autoreset": ("fresh", "pool", "first_state"),
}
# Each long enough to be killed several times, and with something else to lose.
RUNS = {
    "plain": {"total_steps": "600_000", "evaluation.every_steps": "100_000"},
    "outer loop": {
        "total_steps": "300_000",
        "environment.observation_normalisation": "true",
        "environment.reward_normalisation": "true",
        "algorithm.reference.center_of_mass": "8",
        "algorithm.advantage_center_of_mass": "2",
        "algorithm.schedule": "linear",
        "run.log_every": "3",
    },
    "adaptive population": {
        "total_steps": "200_000",
        "seeds": "2",
        "algorithm.adaptive_batch.driver": "kl",
        "algorithm.adaptive_batch.minimum": "4",
        "algorithm.adaptive_batch.maximum": "8",
        "algorithm.adaptive_batch.low": "1e-6",
        "algorithm.adaptive_batch.high": "1e-2",
        "algorithm.adaptive_batch.every": "2",
        "algorithm.adaptive_batch.window": "3",
        "algorithm.adaptive_batch.burn_in": "1",
        "algorithm.adaptive_batch.span": "interval",
        "algorithm.rollout_length": "8",
    },
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Of the runs' processes: one device, and a compile cache that all share."""
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    kept = {name: value for name, value in os.environ.items() if name not in ("NPROC", "JAX_NUM_CPU_DEVICES")}
    return kept | {"JAX_COMPILATION_CACHE_DIR": cache, "TF_CPP_MIN_LOG_LEVEL": "3"}


def start(words: list[str], environment: dict[str, str]) -> subprocess.Popen:
    command = [sys.executable, "-m", "purejaxrl_scale", *words]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def untimed(run: Path) -> list[dict]:
    lines = records.read(run / "metrics.jsonl")
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def members(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def differences(one: Path, other: Path) -> list[str]:
    """What is not the same in two finished runs, times apart."""
    found = []
    if untimed(one) != untimed(other):
        found.append("metrics.jsonl")
    if records.read(one / "evaluations.jsonl") != records.read(other / "evaluations.jsonl"):
        found.append("evaluations.jsonl")
    last = checkpoints.steps(other)[-1]
    left, right = checkpoints.restore(one, last).leaves, checkpoints.restore(other, last).leaves
    if left.keys() != right.keys():
        found.append("leaves")
    return found + [name for name in left if not np.array_equal(left[name], right[name], equal_nan=True)]


def lost_training(run: Path) -> float:
    """Seconds of training in the record that no checkpoint holds."""
    lines, known = records.read(run / "metrics.jsonl"), checkpoints.steps(run)
    saved = checkpoints.restore(run, known[-1]).meta["wall_seconds"] if known else 0.0
    return float(lines[-1]["time/wall_seconds"]) - saved if lines else 0.0


@pytest.mark.robustness
def test_random_kills_lose_nothing(tmp_path, environment, capsys):
    chance = random.Random(SEED)
    drawn = {name: COMMON | {field: str(chance.choice(values)) for field, values in RANDOM.items()} for name in RUNS}
    words_of = {
        name: [word for field, value in (drawn[name] | RUNS[name]).items() for word in (f"--{field}", value)]
        for name in RUNS
    }
    whole: dict[str, list[Path]] = {}
    seconds: dict[str, float] = {}
    for name, words in words_of.items():
        for attempt in ("cold", "warm"):  # the second compiles from the cache, as those that are killed do
            folder = tmp_path / f"whole {name} {attempt}"
            began = time.monotonic()
            process = start(["train", "cartpole", *words, "--run.folder", str(folder)], environment)
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, output
            whole[name], seconds[name] = members(folder), time.monotonic() - began
    kills = lost = differing = runs = 0
    while kills < KILLS:
        name = chance.choice(list(RUNS))
        words, every = words_of[name], float(drawn[name]["checkpoint.every_seconds"])
        folder = tmp_path / f"killed {runs}"
        runs += 1
        process, left = (
            start(["train", "cartpole", *words, "--run.folder", str(folder)], environment),
            chance.randint(1, 4),
        )
        while True:
            if left:
                # At any moment: in the start, while it compiles, trains or saves, after the end.
                try:
                    process.wait(chance.uniform(0.0, 1.1 * seconds[name]))
                except subprocess.TimeoutExpired:
                    number = chance.choice([signal.SIGKILL, signal.SIGTERM])
                    process.send_signal(number)
                    kills, left = kills + 1, left - 1
            output, _ = process.communicate(timeout=300)
            if process.returncode == 0:
                break
            again = members(folder)
            # Before the command has put its own handler in place SIGTERM is the system's.
            expected = (75, -signal.SIGKILL) if again else (75, -signal.SIGKILL, -signal.SIGTERM)
            assert process.returncode in expected, output
            for run in again:
                if process.returncode == -signal.SIGKILL:
                    assert lost_training(run) < every + SLACK_SECONDS, run
                elif "all is saved" in output:
                    assert lost_training(run) <= 0.0, run
            complete = len(again) == len(whole[name]) and all((run / "config.yaml").exists() for run in again)
            if not complete:
                # Killed before its record was begun: there is nothing to resume.
                folder = tmp_path / f"killed {runs}"
                runs += 1
                process = start(["train", "cartpole", *words, "--run.folder", str(folder)], environment)
            else:
                process = start(["resume", str(again[0])], environment)
        for one, other in zip(members(folder), whole[name], strict=True):
            steps = [line["outer_step"] for line in untimed(one)]
            lost += steps != [line["outer_step"] for line in untimed(other)]
            found = differences(one, other)
            differing += bool(found)
            if found:
                with capsys.disabled():
                    print(f"\n{name}: {one} differs from {other} in {found[:5]}")
    with capsys.disabled():
        print(f"\nseed {SEED}: {kills} kills in {runs} runs, {lost} lost, {differing} differing")
    assert lost == differing == 0
