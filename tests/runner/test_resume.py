"""Going on exactly: for every family of experiments, on other devices, and from what a disk has left."""

import dataclasses
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from purejaxrl_scale import config_io, counters
from purejaxrl_scale.config import (
    AdaptiveBatchConfig,
    AlgorithmConfig,
    CheckpointConfig,
    Config,
    DevicesConfig,
    EnvironmentConfig,
    MonitorsConfig,
    NetworkConfig,
    ReferenceConfig,
)
from purejaxrl_scale.runner import checkpoints, folders, records, runner
from purejaxrl_scale.train import make_train
from tests.runner.test_integration import cartpole, only_run, stopping, untimed

__all__ = ["stopping"]


def family(
    environment_name: str, algorithm: dict | None = None, environment: dict | None = None, **network: object
) -> Config:
    return Config(
        total_steps=10_000,
        environment=EnvironmentConfig(**{"name": environment_name, "num_envs": 16, **(environment or {})}),
        network=NetworkConfig(**{"widths": (8,), **network}),
        algorithm=AlgorithmConfig(**{"rollout_length": 4, "minibatch_size": 32, "epochs": 2, **(algorithm or {})}),
        monitors=MonitorsConfig(samples=64),
        devices=DevicesConfig(count=1),
    )


NORMALISED = {"observation_normalisation": True, "reward_normalisation": True, "staggered": True}
LENGTHS = AdaptiveBatchConfig(
    driver="behavioural_divergence",
    minimum=2,
    maximum=4,
    low=0.001,
    high=0.2,
    every=1,
    window=3,
    burn_in=1,
    smoothing=0.5,
    span="interval",
)
UNMEASURED = {name: getattr(AdaptiveBatchConfig(), name) for name in ("low", "high", "window", "burn_in", "span")}
FAMILIES = {
    "ppo": family("gymnax/CartPole-v1", {"schedule": "warmup_cosine"}),
    "ppo-ewma, normalised, continuous": family(
        "gymnax/Pendulum-v1",
        {
            "objective": "kl_penalty",
            "reference": ReferenceConfig(center_of_mass=8.0),
            "advantage_center_of_mass": 2.0,
            "schedule": "linear",
            "adaptive_batch": replace(LENGTHS, **UNMEASURED, driver="noise_scale"),
        },
        NORMALISED,
    ),
    "recurrent": family(
        "gymnax/CartPole-v1", environment={"autoreset": "pool", "pool_size": 8}, recurrent=True, hidden_size=8
    ),
    "pqn, adaptive": family(
        "gymnax/CartPole-v1",
        {"name": "pqn", "adaptive_batch": LENGTHS},
        {"autoreset": "first_state"},
        layer_norm=True,
    ),
    "images, scheduled": family(
        "gymnax/Breakout-MinAtar",
        {"adaptive_batch": replace(LENGTHS, **UNMEASURED, driver="schedule")},
        name="minatar_cnn",
    ),
    "population": replace(family("gymnax/CartPole-v1"), seeds=2, changes=("algorithm.clip=0.1@300",)),
}
SLOW_FAMILIES = {
    "brax": family("brax/ant", environment=NORMALISED),
    "brax, adaptive": family("brax/hopper", {"adaptive_batch": replace(LENGTHS, driver="kl", span="update")}),
    "kinetix, entities": family("kinetix/s", name="entity_transformer", shared=True),
    "kinetix, a level": family("kinetix/m", environment={"observation": "flat", "levels": ("m/h3_car_thrust",)}),
    "kinetix, tasks": family("kinetix/locomotion", environment={"observation": "flat", "num_tasks": 4}),
}


def first_keys(config: Config) -> jax.Array:
    keys = jax.vmap(jax.random.key)(jax.numpy.arange(config.seeds))
    return keys if config.seeds > 1 else keys[0]


def until_four(config: Config, path: Path) -> None:
    """10 outer steps, and 4 with a checkpoint after them."""
    trainer = make_train(config)
    whole, metrics = trainer.chunk(trainer.init(first_keys(config)), 10)
    state, _ = trainer.chunk(trainer.init(first_keys(config)), 4)
    path.mkdir(parents=True)
    config_io.save(config, path / "config.yaml")
    keep_arrays(path / "whole.npz", whole, {name: column[..., 4:10] for name, column in metrics.items()})
    saver = checkpoints.Checkpoints(path, keep=1)
    saver.save(4, checkpoints.to_host(state), {})
    saver.wait()
    saver.close()


def from_four(path: Path) -> None:
    """The other 6, by whoever comes."""
    config = config_io.load(path / "config.yaml")
    trainer = make_train(config)
    state = checkpoints.from_host(
        trainer.init(first_keys(replace(config, seed=9))), checkpoints.restore(path, 4).leaves
    )
    state, metrics = trainer.chunk(state, 6)
    keep_arrays(path / "later.npz", state, {name: column[..., :6] for name, column in metrics.items()})


def keep_arrays(path: Path, state: object, metrics: dict) -> None:
    np.savez(path, **{f"state{name}": leaf for name, leaf in checkpoints.to_host(state).items()}, **metrics)


def in_a_new_process(folder: Path, families: dict[str, Config]) -> Path:
    """The folder of all families' two halves, of which another process takes the second."""
    for name, config in families.items():
        until_four(config, folder / name)
    program = """
import sys
from pathlib import Path
import tests.conftest
from tests.runner.test_resume import from_four

for folder in Path(sys.argv[1]).iterdir():
    from_four(folder)
"""
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, cwd=Path(__file__).parents[2])
    return folder


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    return in_a_new_process(tmp_path_factory.mktemp("halves"), FAMILIES)


@pytest.fixture(scope="module")
def slow_halves(tmp_path_factory):
    return in_a_new_process(tmp_path_factory.mktemp("halves"), SLOW_FAMILIES)


def assert_ten_are_four_and_six(folder: Path) -> None:
    whole, later = np.load(folder / "whole.npz"), np.load(folder / "later.npz")
    assert set(whole) == set(later)
    for name in whole:
        np.testing.assert_array_equal(whole[name], later[name], err_msg=name)


@pytest.mark.parametrize("name", FAMILIES)
def test_four_outer_steps_a_new_process_and_six_are_ten(name, halves):
    assert_ten_are_four_and_six(halves / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_FAMILIES)
def test_so_are_they_with_physics(name, slow_halves):
    assert_ten_are_four_and_six(slow_halves / name)


def test_saved_on_eight_devices_it_goes_on_with_any_number(tmp_path):
    """Through the disk; with exact reduction four, two and one go on as the eight do."""
    nothing = MonitorsConfig(
        samples=16_384, kl=False, behavioural_divergence=False, outer_step=False, noise_scale=False
    )
    config = replace(FAMILIES["ppo"], devices=DevicesConfig(count=8, exact_reduction=True), monitors=nothing)
    trainer = make_train(config)
    state, _ = trainer.chunk(trainer.init(jax.random.key(0)), 2)
    saver = checkpoints.Checkpoints(tmp_path, keep=1)
    saver.save(2, checkpoints.to_host(state), {})
    saver.wait()
    saver.close()
    state, _ = trainer.chunk(state, 1)
    after = checkpoints.to_host(state)
    for count in (4, 2, 1):
        fewer = make_train(replace(config, devices=replace(config.devices, count=count)))
        state = checkpoints.from_host(fewer.init(jax.random.key(1)), checkpoints.restore(tmp_path, 2).leaves)
        state, _ = fewer.chunk(state, 1)
        np.testing.assert_equal(checkpoints.to_host(state), after)


@pytest.mark.parametrize("start", [2**31 - 1, 2**31 - 64, 2**32 - 64, 10**12 - 1, 2**53 - 1])
def test_steps_are_counted_exactly(start):
    """A run that had taken so many steps goes on counting in the metrics from which the record is written."""
    trainer = make_train(replace(FAMILIES["ppo"], total_steps=2**54))
    state = trainer.init(jax.random.key(0))._replace(steps=counters.init(start))
    _, metrics = trainer.chunk(state, 3)
    rows = list(records.raw_rows(jax.tree.map(np.asarray, metrics)))
    assert [row["steps"] for row in rows] == [start + 64 * step for step in (1, 2, 3)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert runner.train(cartpole(folder), "whole") == 0
    return only_run(folder)


@pytest.fixture
def cut(tmp_path, stopping):
    """A run that was stopped at its third checkpoint of twelve outer steps or later, and keeps two."""
    config = dataclasses.replace(cartpole(tmp_path), checkpoint=CheckpointConfig(every_seconds=1e-9, keep=2))
    undo = stopping(3)
    assert runner.train(config, "cut") == 75
    undo()
    return only_run(tmp_path)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"x" * 99),
    ],
    ids=["truncated", "deleted", "empty", "garbage"],
)
def test_a_damaged_checkpoint_is_set_aside_for_an_older_one(cut, whole, damage, capsys):
    older, newest = checkpoints.steps(cut)
    files = [path for path in (cut / "checkpoints" / str(newest) / "state").rglob("*") if path.is_file()]
    for path in files:
        damage(path)
    capsys.readouterr()
    assert runner.resume(cut) == 0
    said = capsys.readouterr().out
    assert f"checkpoints/{newest} cannot be read" in said
    assert "an older one is tried" in said
    assert untimed(cut) == untimed(whole)
    assert list((cut / "checkpoints").glob(f"damaged-{newest}-*"))
    assert older < newest


def test_no_readable_checkpoint_is_a_clear_failure(cut, capsys):
    for step in checkpoints.steps(cut):
        shutil.rmtree(cut / "checkpoints" / str(step) / "state")
        (cut / "checkpoints" / str(step) / "state").mkdir()
    assert runner.resume(cut) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_an_edited_config_is_refused_by_its_fields(cut):
    config = config_io.load(cut / "config.yaml")
    edited = config_io.replace(config, {"environment.num_envs": 32, "network.widths": (4,), "run.progress": "plain"})
    config_io.save(edited, cut / "config.yaml")
    with pytest.raises(folders.RunError, match=r"num_envs was 16 and is 32; network.widths was \(8,\) and is \(4,\)\."):
        runner.resume(cut)


def test_a_lost_record_is_remarked(cut, capsys):
    saved = checkpoints.steps(cut)[-1]
    (cut / "metrics.jsonl").unlink()
    capsys.readouterr()
    assert runner.resume(cut) == 0
    assert f"ends at outer step 0 of {saved}" in capsys.readouterr().out
    assert [line["outer_step"] for line in untimed(cut)] == list(range(saved + 1, 13))
