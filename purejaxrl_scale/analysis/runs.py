"""Runs as data: their config, metrics, evaluations, and the policy they ended with."""

from __future__ import annotations

import glob
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pandas as pd

from purejaxrl_scale import config_io
from purejaxrl_scale.config import Config
from purejaxrl_scale.runner import folders, records
from purejaxrl_scale.runner.folders import RunError

if TYPE_CHECKING:
    import jax

PyTree = Any


class Checkpoint(NamedTuple):
    """What a run had learnt at one point."""

    learner: PyTree
    outer_step: int
    steps: int  # environment steps


class Policy:
    """The policy of a run's newest checkpoint, for one observation or a batch of them."""

    def __init__(self, run: Run):
        self._run = run

    def __call__(
        self,
        observation: PyTree,
        key: jax.Array | None = None,
        deterministic: bool = False,
        *,
        memory: PyTree = None,
        first: bool = False,
    ) -> Any:
        """The action as the environment takes it; of a recurrent policy (action, memory).

        `observation` has the shapes of the environment's observation space. A recurrent policy takes the memory of
        its last call; without one it begins an episode. Raises ValueError where a sample is asked for without a key.
        """
        import jax
        import jax.numpy as jnp

        if key is None and not deterministic:
            raise ValueError("a stochastic policy needs a key: policy(observation, key), or deterministic=True")
        trainer = self._run.trainer
        first = first or memory is None
        act_key = jax.random.key(0) if key is None else key
        _, action, memory = trainer.act(
            self._run.checkpoint().learner,
            trainer.initial_memory(1) if memory is None else memory,
            jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], observation),
            jnp.array([first]),
            act_key[None],
            deterministic=deterministic,
        )
        action = jax.tree.map(lambda leaf: leaf[0], action)
        return (action, memory) if self._run.config.network.recurrent else action


@dataclass(frozen=True)
class Run:
    """One run, read when asked for."""

    path: Path

    @cached_property
    def config(self) -> Config:
        """The config it was started with."""
        return config_io.load(self.path / folders.CONFIG_FILE)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row a line of metrics.jsonl. What was absent, and what was not finite, is NaN."""
        return _frame(records.read(self.path / records.METRICS_FILE))

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """A row an evaluation and mode; of one that was repeated, the latest."""
        frame = _frame(records.evaluations(self.path))
        return frame.drop_duplicates(["steps", "mode"], keep="last", ignore_index=True) if len(frame) else frame

    @cached_property
    def protocol(self) -> list[dict[str, Any]]:
        """The lines of the newest complete evaluation by Kinetix's protocol, one for each kind and size of levels."""
        lines = [line for line in records.read(self.path / records.EVALUATIONS_FILE) if "protocol" in line]
        complete = [line["outer_step"] for line in lines if line["size"] == "all"]
        newest = {(line["levels"], line["size"]): line for line in lines if line["outer_step"] in complete[-1:]}
        return list(newest.values())

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions, devices, flags and commit of the start."""
        path = self.path / folders.ENVIRONMENT_FILE
        return json.loads(path.read_text()) if path.exists() else {}

    @cached_property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def trainer(self) -> Any:
        """The config made ready to run; this imports JAX."""
        from purejaxrl_scale.train import make_train

        return make_train(self.config)

    def checkpoint(self, which: Literal["newest", "best"] = "newest") -> Checkpoint:
        """The newest complete checkpoint, or the one with the best returns in training. Raises RunError where there is
        none."""
        if which not in self._checkpoints:
            self._checkpoints[which] = self._read(which)
        return self._checkpoints[which]

    @cached_property
    def _checkpoints(self) -> dict[str, Checkpoint]:
        return {}

    def _read(self, which: Literal["newest", "best"]) -> Checkpoint:
        import jax

        from purejaxrl_scale.runner import checkpoints

        steps = checkpoints.steps(self.path)
        if not steps:
            raise RunError(f"{self.path} has no checkpoint")
        step = checkpoints.best(self.path) if which == "best" else steps[-1]
        restored = checkpoints.restore(self.path, step)
        # Only the shapes of a state, and of it only what is learnt: environments may need gigabytes.
        template = jax.eval_shape(self.trainer.init, jax.random.key(self.config.seed)).learner
        learner = checkpoints.from_host(template, checkpoints.below(restored.leaves, "learner"))
        return Checkpoint(learner, step, int(restored.meta["steps"]))

    @cached_property
    def policy(self) -> Policy:
        """policy(observation, key, deterministic)."""
        return Policy(self)


def load_run(path: str | Path) -> Run:
    """A run from its folder. Raises RunError where it is none."""
    run = Run(Path(path))
    folders.members_of(run.path)
    return run


def load_runs(pattern: str | Path) -> pd.DataFrame:
    """The metrics of all runs whose folders match a pattern (`runs/cartpole-*`), one below the other.

    Each row also names its run, seed and environment, and those config fields in which the runs differ, each under
    its dotted name. Raises RunError where nothing matches.
    """
    # Path.glob takes no absolute patterns.
    found = map(Path, glob.glob(str(pattern)))  # noqa: PTH207
    paths = sorted(path for path in found if (path / folders.CONFIG_FILE).is_file())
    if not paths:
        raise RunError(f"no run matches {pattern}")
    runs = [load_run(path) for path in paths]
    values = [{name: config_io.get(run.config, name) for name in config_io.fields()} for run in runs]
    differing = [name for name in values[0] if len({str(one[name]) for one in values}) > 1 and name != "seed"]
    frames = []
    for run, fields in zip(runs, values, strict=True):
        columns = {"run": run.name, "seed": run.config.seed, "environment": run.config.environment.name}
        columns |= {name: str(fields[name]) if isinstance(fields[name], tuple) else fields[name] for name in differing}
        frame = run.metrics.copy()
        for position, (name, value) in enumerate(columns.items()):
            frame.insert(position, name, value)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _frame(lines: list[records.Line]) -> pd.DataFrame:
    frame = pd.DataFrame(lines)
    words = [name for name in frame.columns if name == "mode"]
    for name in frame.columns.difference(words):
        frame[name] = pd.to_numeric(frame[name])
    return frame
