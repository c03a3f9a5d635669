"""Saving and restoring the whole training state, bit for bit, with Orbax.

A state is stored as a flat mapping from the path of each leaf to a host array, so that nothing in it depends on how
many devices saved it. Typed keys are stored as their key data and wrapped again. Each member of a population has its
own complete checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import PreservationPolicy

from purejaxrl_scale.runner import hosts
from purejaxrl_scale.runner.folders import RunError

FOLDER = "checkpoints"
_STATE, _META = "state", "meta"
_SUMS = "checksums"  # in the mapping, of each array
SCORE = "score"  # in the mapping that is saved beside a state
_OPTIONAL = ("learnt/reference/", "advantage_moments/")  # what a run may have that the one it starts from had not
PyTree = Any


class Restored(NamedTuple):
    """A checkpoint as it lies on the disk."""

    leaves: dict[str, np.ndarray]
    meta: dict[str, Any]


class _NewestAndBest(PreservationPolicy):
    """Keeps the newest checkpoints and those of the highest scores; one without a score is kept for its age alone."""

    def __init__(self, keep: int, keep_best: int, scores: dict[int, float]):
        self._keep, self._keep_best, self.scores = max(1, keep), keep_best, scores

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        del context
        steps = [one.step for one in checkpoints]
        scored = sorted((step for step in steps if step in self.scores), key=lambda step: (self.scores[step], step))
        kept = {*sorted(steps)[-self._keep :], *scored[max(0, len(scored) - self._keep_best) :]}
        return [step in kept for step in steps]


class Checkpoints:
    """The checkpoints of one run. Saving goes on in the background; `wait` ends when all is on the disk."""

    def __init__(self, run: Path, keep: int, keep_best: int = 0):
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # what fails is told by exceptions
        self._folder = run / FOLDER
        self._folder.mkdir(exist_ok=True)
        self._policy = _NewestAndBest(keep, keep_best, scores(run))
        self._manager = ocp.CheckpointManager(
            self._folder.absolute(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._policy,
                create=False,
                enable_async_checkpointing=True,
                multiprocessing_options=hosts.alone(),
            ),
        )

    def save(self, outer_step: int, leaves: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Save host arrays that nobody changes any more, and a JSON mapping. A second save of a step does nothing.

        A number under `score` in the mapping is what the best are judged by.
        """
        if outer_step in self._manager.all_steps():
            return
        if meta.get(SCORE) is not None:
            self._policy.scores[outer_step] = meta[SCORE]
        with self._told():
            self._manager.save(
                outer_step,
                args=ocp.args.Composite(
                    **{
                        _STATE: ocp.args.StandardSave(leaves),
                        _META: ocp.args.JsonSave({**meta, _SUMS: _sums(leaves)}),
                    }
                ),
            )

    def wait(self) -> None:
        """Return when everything is on the disk. Raises OSError where a save, perhaps an earlier one, has failed."""
        with self._told():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """End what goes on in the background; a save that failed was told by `save` or `wait`."""
        with contextlib.suppress(Exception):
            self._manager.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What Orbax and TensorStore raise, as the OSError behind it."""
        try:
            yield
        except Exception as fault:
            code = re.search(r"os_error_code='(\d+)'", str(fault))
            number = int(code[1]) if code else getattr(fault, "errno", None) or errno.EIO
            raise OSError(number, os.strerror(number), str(self._folder)) from fault


def steps(run: Path) -> list[int]:
    """Outer steps of the complete checkpoints of a run, oldest first."""
    folder = run / FOLDER
    if not folder.is_dir():
        return []
    # A save is renamed into place once it is complete; the name of a half-written one is not a number.
    complete = (one for one in folder.iterdir() if one.name.isdigit() and (one / _META).is_dir())
    return sorted(int(one.name) for one in complete if (one / _STATE).is_dir())


def restore(run: Path, outer_step: int) -> Restored:
    """Read one checkpoint. Raises RunError where it cannot be read."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    folder = run / FOLDER
    try:
        options = ocp.CheckpointManagerOptions(read_only=True, create=False, multiprocessing_options=hosts.alone())
        with ocp.CheckpointManager(folder.absolute(), options=options) as manager:
            found = manager.restore(
                outer_step,
                args=ocp.args.Composite(
                    **{
                        _STATE: ocp.args.StandardRestore(),
                        _META: ocp.args.JsonRestore(),
                    }
                ),
            )
    except Exception as fault:
        raise RunError(
            f"checkpoint {folder / str(outer_step)} cannot be read ({type(fault).__name__}: {_first_line(fault)})"
        ) from fault
    leaves, meta = dict(found[_STATE]), dict(found[_META])
    sums = meta.pop(_SUMS, None)
    if sums is not None and sums != (now := _sums(leaves)):
        changed = min(name for name in sums.keys() | now.keys() if sums.get(name) != now.get(name))
        raise RunError(f"checkpoint {folder / str(outer_step)} cannot be read (the disk has changed {changed})")
    return Restored(leaves, meta)


def _sums(leaves: dict[str, np.ndarray]) -> dict[str, int]:
    """A checksum of each array: TensorStore itself restores flipped bits without a word."""
    return {name: zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8).data) for name, leaf in leaves.items()}


def config_of(run: Path, outer_step: int) -> dict[str, Any]:
    """The config that a checkpoint was saved under, as `config_io.to_dict` writes it; {} where it cannot be read."""
    return _meta_of(run, outer_step).get("config") or {}


def scores(run: Path) -> dict[int, float]:
    """The scores of a run's checkpoints, of those that have one."""
    found = {step: _meta_of(run, step).get(SCORE) for step in steps(run)}
    return {step: float(score) for step, score in found.items() if score is not None}


def best(run: Path) -> int:
    """The outer step of the checkpoint with the highest score. Raises RunError where none has one."""
    known = scores(run)
    if not known:
        raise RunError(f"no checkpoint of {run} has a score: no episode had ended when it was saved")
    return max(known, key=lambda step: (known[step], step))


def _meta_of(run: Path, outer_step: int) -> dict[str, Any]:
    """What a checkpoint was saved with beside its state; {} where it cannot be read."""
    try:
        return json.loads((run / FOLDER / str(outer_step) / _META / "metadata").read_bytes())
    except (OSError, ValueError):
        return {}


def set_aside(run: Path, outer_step: int) -> Path:
    """Rename a checkpoint that cannot be read, so that it is neither tried nor counted again; its new place."""
    folder = run / FOLDER / str(outer_step)
    aside = folder.with_name(f"damaged-{outer_step}-{time.strftime('%Y%m%d-%H%M%S')}")
    folder.rename(aside)
    return aside


def _first_line(fault: BaseException) -> str:
    return (str(fault).splitlines() or [""])[0][:200]


def to_host(state: PyTree) -> dict[str, np.ndarray]:
    """Leaves of a state by path, copied to the host."""
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if np.prod(leaf.shape, dtype=int):  # Orbax refuses empty arrays, and there is nothing in them to save
            # A copy: on a CPU the array is a view of a buffer that the next chunk overwrites.
            leaves[_name(path)] = hosts.whole(_key_data(leaf))
    return leaves


def below(leaves: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """The leaves of one field of a state, named from there on."""
    prefix = f"{name}/"
    return {path.removeprefix(prefix): leaf for path, leaf in leaves.items() if path.startswith(prefix)}


def member_leaves(leaves: dict[str, np.ndarray], member: int | None) -> dict[str, np.ndarray]:
    """One member's part of a population's leaves; all of it if there is no population."""
    return leaves if member is None else {name: np.asarray(leaf[member]) for name, leaf in leaves.items()}


def stack(members: list[dict[str, np.ndarray]], seeds: list[int | None]) -> dict[str, np.ndarray]:
    """The leaves of a population from those of its members; the undoing of `member_leaves`."""
    if seeds == [None]:
        return members[0]
    return {name: np.stack([member[name] for member in members]) for name in members[0]}


def from_host(template: PyTree, leaves: dict[str, np.ndarray]) -> PyTree:
    """The state of `template`'s structure, types and shardings with the values of `leaves`.

    Raises RunError where a checkpoint has other leaves or shapes: it was written by another config or version.
    """
    expected, structure = jax.tree_util.tree_flatten_with_path(template)
    names = {_name(path) for path, leaf in expected if np.prod(leaf.shape, dtype=int)}
    unmatched = names.symmetric_difference(leaves)
    if unmatched:
        raise RunError(f"the checkpoint does not fit this config: {min(unmatched)} is in only one of them")
    return structure.unflatten(
        [_value(_name(path), leaf, leaves) if _name(path) in names else leaf for path, leaf in expected]
    )


def start_from(learner: PyTree, run: Path, seeds: list[int | None]) -> PyTree:
    """A new run's learner with what `run` had learnt at its newest checkpoint, for each member of a population.

    A reference policy that `run` did not have starts at its weights, moments of advantages start anew; what of these
    this config has no use for is left out. Raises RunError where there is no checkpoint, or networks or normalisers do
    not fit.
    """
    known = steps(run)
    if not known:
        raise RunError(f"run.start_from {run} has no checkpoint that is complete")
    found = below(restore(run, known[-1]).leaves, "learner")
    template = to_host(learner)
    for name, leaf in template.items():
        if name.startswith(_OPTIONAL) and name not in found:
            weight = name.replace("learnt/reference/params", "learnt/params", 1)
            single = leaf if seeds == [None] else leaf[0]
            found[name] = found[weight] if weight != name and weight in found else single
    leaves = {name: leaf for name, leaf in found.items() if name in template or not name.startswith(_OPTIONAL)}
    try:
        return from_host(learner, stack([leaves] * len(seeds), seeds))
    except RunError as fault:
        raise RunError(f"run.start_from {run}: {fault}") from fault


def _value(name: str, leaf: jax.Array, leaves: dict[str, np.ndarray]) -> jax.Array:
    array = leaves[name]
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    data = jax.eval_shape(jax.random.key_data, leaf) if is_key else leaf
    if array.shape != data.shape or array.dtype != data.dtype:
        raise RunError(
            f"the checkpoint does not fit this config: {name} is {array.dtype}{list(array.shape)} there and "
            f"{data.dtype}{list(data.shape)} here"
        )
    if is_key:
        keys = jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
        # Keys are few and the same everywhere; a function of a whole mesh takes them as they are.
        return keys if hosts.are_several() else jax.device_put(keys, getattr(leaf, "sharding", None))
    return hosts.placed(array, getattr(leaf, "sharding", None))


def _key_data(leaf):
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _name(path) -> str:
    return "/".join(
        str(getattr(part, "name", getattr(part, "key", getattr(part, "idx", part)))).replace("/", "_") for part in path
    )
