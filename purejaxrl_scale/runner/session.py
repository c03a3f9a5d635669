"""One start of a run, from making the trainer to the report: what the worker thread does."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from purejaxrl_scale import config_io, hyperparameters
from purejaxrl_scale import train as training
from purejaxrl_scale.config import Config
from purejaxrl_scale.runner import checkpoints, evaluation, folders, hosts, records
from purejaxrl_scale.runner.compilation import watch
from purejaxrl_scale.runner.folders import RunError
from purejaxrl_scale.runner.pace import Pace
from purejaxrl_scale.runner.progress import Display
from purejaxrl_scale.runner.signals import EXIT_DONE, EXIT_STOPPED, Control
from purejaxrl_scale.runner.status import Status, duration
from purejaxrl_scale.runner.wandb_mirror import WandbMirror
from purejaxrl_scale.state import starting_at

PyTree = Any
_NAN_WINDOW = 100  # outer steps over which resets from NaN physics are counted
_FEWEST_RESETS, _FEWEST_NAN_RESETS = 100, 10  # below these a share means nothing


class Session:
    """The worker's side of a run: `work()` does it all and returns the exit code."""

    def __init__(
        self,
        config: Config,
        configs: list[Config],
        members: list[Path],
        sources: list[Path],
        candidates: list[int],
        control: Control,
        status: Status,
        display: Display,
        log: Callable[[str], None],
    ):
        self._config, self._configs = config, configs
        self._members, self._sources, self._candidates = members, sources, candidates
        self._control, self._status, self._display, self._log = control, status, display, log
        self._seeds: list[int | None] = [None] if len(members) == 1 else list(range(len(members)))
        self._recorders = [records.Recorder(config.run.log_every) for _ in members]
        self._resets: deque[tuple[int, int]] = deque(maxlen=_NAN_WINDOW)
        self._returns = [records.Returns() for _ in members]
        self._losses = [0.0] * len(members)  # of the last outer step
        self._mirrors: list[WandbMirror] = []
        self._savers: list[checkpoints.Checkpoints] = []
        self.outer_step = 0
        self.steps = 0  # of the member that has taken the fewest
        self._member_steps = [0] * len(members)
        self.wall_seconds = 0.0
        self.closing_words: list[str] = []

    def work(self) -> int:
        """Train until the end, or until a signal stops it."""
        with contextlib.ExitStack() as stack:
            self._status.enter("preparing")
            self._display.refresh()
            jax.config.update("jax_default_matmul_precision", _precision(self._config))
            trainer = training.make_train(self._config)
            folders.write_environment(self._members, _devices(), self._config.devices.matmul_precision)
            state = self._start(trainer)
            stack.callback(self._close_mirrors)
            self._mirrors = [
                WandbMirror(
                    member,
                    self._config.run.wandb,
                    self._config.run.wandb_project,
                    config_io.to_dict(own),
                    self._remark,
                    group=self._members[0].name if len(self._members) > 1 else "",
                )
                for member, own in zip(self._members, self._configs, strict=True)
            ]
            if hosts.leads():
                kept = self._config.checkpoint
                self._savers = [checkpoints.Checkpoints(member, kept.keep, kept.keep_best) for member in self._members]
            for saver in self._savers:
                stack.callback(saver.close)
            self._evaluate_jitted = evaluation.make_evaluate(trainer)
            if not self._is_finished:
                chunk = self._compile(trainer, state)
                hosts.wait_for_compilers()
                state = self._loop(trainer, chunk, state)
                if not self._is_finished:
                    return EXIT_STOPPED
            # All is saved: from here on a signal may end the process at once.
            self._control.interruptible.set()
            self._finish(trainer, state)
            return EXIT_DONE

    @property
    def _is_finished(self) -> bool:
        config = self._config
        if config.adapts:
            return self.steps >= config.actual_steps
        return self.outer_step >= config.num_outer_steps

    @property
    def _most_left(self) -> int:
        """Outer steps still to be taken; where lengths adapt the most there can be."""
        config = self._config
        if config.adapts:
            return -(-(config.actual_steps - self.steps) // (config.environment.num_envs * config.shortest_rollout))
        return config.num_outer_steps - self.outer_step

    def _start(self, trainer: Any) -> PyTree:
        """The state to train from: a new one, or the checkpoint's, with the record cut back to it."""
        keys = [jax.random.key(config.seed) for config in self._configs]
        numbers = [hyperparameters.from_config(config) for config in self._configs]
        state = (
            trainer.init(keys[0], numbers[0])
            if len(keys) == 1
            else trainer.init(jnp.stack(keys), jax.tree.map(lambda *leaves: jnp.stack(leaves), *numbers))
        )
        # A run that has a checkpoint of its own needs the one it started from no more.
        source = None if self._candidates else folders.source_of(self._config)
        if source is not None:
            learner = checkpoints.start_from(state.learner, source, self._seeds)
            state = state._replace(learner=learner, outer_loop=starting_at(state.outer_loop, learner.params))
        if self._candidates:
            self.outer_step, restored = self._restore_newest()
            state = checkpoints.from_host(state, checkpoints.stack([one.leaves for one in restored], self._seeds))
            self._member_steps = [int(one.meta["steps"]) for one in restored]
            self.steps, self.wall_seconds = min(self._member_steps), float(restored[0].meta["wall_seconds"])
            for recorder, one in zip(self._recorders, restored, strict=True):
                recorder.pending = {name: list(sums) for name, sums in one.meta["pending"].items()}
        for member in self._members:
            for file in (records.METRICS_FILE, records.EVALUATIONS_FILE):
                records.cut_back(member / file, self.outer_step)
        lines = records.read(self._members[0] / records.METRICS_FILE)
        for line in lines:
            self._status.take_in(line)
        recorded = int(lines[-1]["outer_step"] or 0) if lines else 0
        if hosts.leads() and recorded <= self.outer_step - self._config.run.log_every:
            self._remark(
                f"{self._members[0] / records.METRICS_FILE} ends at outer step {recorded:,} of {self.outer_step:,}: "
                "lines between them were lost, not by this program"
            )
        self._status.steps = self.steps
        return state

    def _restore_newest(self) -> tuple[int, list[checkpoints.Restored]]:
        """The newest checkpoint that can be read; those that cannot are set aside. Raises RunError if none can."""
        for number, step in enumerate(sorted(self._candidates, reverse=True)):
            try:
                return step, [checkpoints.restore(source, step) for source in self._sources]
            except RunError as fault:
                if number == len(self._candidates) - 1:
                    raise
                self._remark(f"{fault}; an older one is tried")
                if hosts.leads():
                    for source in self._sources:
                        checkpoints.set_aside(source, step)
        raise RunError("there is no checkpoint")

    def _remark(self, text: str) -> None:
        self._log(text)
        if text not in self.closing_words:
            self.closing_words.append(text)

    def _compile(self, trainer: Any, state: PyTree) -> Callable[[PyTree, np.uint32], tuple[PyTree, Mapping]]:
        """The one compilation of the chunk. It is called with the executable, so it cannot compile again."""
        began = self._enter("tracing and lowering")
        with watch() as log:
            lowered = trainer.lower_chunk(state)
        traced_in = time.monotonic() - began - log.lowering_seconds
        began = self._enter("compiling")
        with watch() as compile_log:
            compiled = lowered.compile()
        compiled_in = time.monotonic() - began
        origin = "from the cache" if compile_log.cached else "not in the cache"
        self._status.compiled = (
            f"traced in {traced_in:.1f} s, lowered in {log.lowering_seconds:.1f} s, "
            f"compiled in {compiled_in:.1f} s ({origin})"
        )
        self._log(self._status.compiled)
        self._enter("")
        return compiled

    def _enter(self, stage: str) -> float:
        self._status.enter(stage)
        self._display.refresh()
        return time.monotonic()

    def _loop(self, trainer: Any, chunk: Callable, state: PyTree) -> PyTree:
        """Chunks, and what happens between them, until the end or a signal."""
        config = self._config
        pace = Pace(config.run.chunk_seconds, trainer.chunk_limit)
        last_save, chunks, bookkeeping = time.monotonic(), 0, 0.0
        self._control.interruptible.clear()
        stopping = hosts.anyone(self._control.stopping)
        while not self._is_finished and not stopping:
            self._control.expect_progress_within(config.devices.patience_seconds if hosts.are_several() else None)
            left = self._most_left
            (asked,) = hosts.agree([pace.choose(min(left, self._until_evaluation()))])
            profiled = config.run.profile and (chunks == 1 or (chunks == 0 and asked == left))
            with jax.profiler.trace(str(self._members[0] / "profile")) if profiled else contextlib.nullcontext():
                began = time.monotonic()
                state, metrics = jax.block_until_ready(chunk(state, np.uint32(asked)))
                seconds = time.monotonic() - began
            began = time.monotonic()
            evaluated_before = self._evaluations_due()
            # The first chunk touches its memory for the first time and would spoil the rate.
            taken = self._record(jax.device_get(metrics), seconds, rated=chunks > 0 or asked == left)
            pace.measure(taken, seconds)
            self._display.refresh()
            bookkeeping += time.monotonic() - began
            chunks += 1
            if lost := self._lost():
                # Nothing is saved: what there is to go on with was saved before.
                self._wait_for_savers()
                raise RunError(lost)
            diverged = self._broken_physics()
            if self._evaluations_due() > evaluated_before and not self._is_finished and not diverged:
                self._evaluate(state)
            (due,) = hosts.agree([time.monotonic() - last_save >= config.checkpoint.every_seconds])
            # Asked once: a signal that came between the saving and the next chunk would end a run that is not saved.
            stopping = hosts.anyone(self._control.stopping)
            if due or diverged or stopping or self._is_finished:
                self._save(state)
                last_save = time.monotonic()
            if diverged:
                self._wait_for_savers()
                raise RunError(diverged)
        self._control.expect_progress_within(None)
        self._log(f"records and display took {bookkeeping:.2f} s beside {self.wall_seconds:.2f} s of training")
        self._wait_for_savers()
        return state

    def _until_evaluation(self) -> int:
        every, batch = self._config.evaluation.every_steps, self._config.batch_size
        if not every:
            return self._most_left
        return max(1, -(-((self.steps // every + 1) * every - self.steps) // batch))

    def _evaluations_due(self) -> int:
        every = self._config.evaluation.every_steps
        return self.steps // every if every else 0

    def _record(self, metrics: Mapping[str, np.ndarray], seconds: float, rated: bool) -> int:
        """Write down what a chunk did; the number of outer steps it took."""
        rows = [list(records.raw_rows(metrics, seed)) for seed in self._seeds]
        taken = max(map(len, rows))
        steps = [member_rows[-1]["steps"] if member_rows else None for member_rows in rows]
        before, self._member_steps = (
            self._member_steps,
            [old if new is None else new for old, new in zip(self._member_steps, steps, strict=True)],
        )
        rate = (sum(self._member_steps) - sum(before)) / seconds
        # A member whose run is over, as may be where lengths adapt, has no rows.
        self.outer_step = max(member_rows[-1]["outer_step"] for member_rows in rows if member_rows)
        self.steps = min(self._member_steps)
        per_member: list[list[records.Line]] = []
        self._losses = [
            float(member_rows[-1].get("loss/total", 0.0)) if member_rows else old
            for member_rows, old in zip(rows, self._losses, strict=True)
        ]
        for recorder, returns, member_rows, at in zip(
            self._recorders, self._returns, rows, self._member_steps, strict=True
        ):
            lines = []
            for index, row in enumerate(member_rows):
                returns.add(row)
                row["time/wall_seconds"] = self.wall_seconds + seconds * (index + 1) / taken
                if rated:
                    row["time/steps_per_second"] = rate / len(self._members)
                lines.append(recorder.add(row))
            if self._is_finished or (self._config.adapts and at >= self._config.actual_steps):
                lines.append(recorder.flush())
            per_member.append([line for line in lines if line is not None])
        for member, lines in zip(self._members, per_member, strict=True):
            records.append(member / records.METRICS_FILE, lines)
        self.wall_seconds += seconds
        for at_once in zip_longest(*rows, fillvalue={}):
            nan_resets = sum(row.get("environment/nan_resets", 0) for row in at_once)
            self._resets.append((int(nan_resets), int(sum(row.get("environment/resets", 0) for row in at_once))))
        for at_once in zip_longest(*per_member):
            self._status.take_in(records.mean_line(tuple(line for line in at_once if line is not None)))
        self._status.steps = self.steps
        if rated:
            self._status.steps_per_second = rate
            left = sum(self._config.actual_steps - steps for steps in self._member_steps)
            self._status.seconds_left = max(0.0, left / max(rate, 1e-9))
        return taken

    def _lost(self) -> str:
        """Why going on is pointless, or "". A loss that is not finite has spoilt Adam's moments and all weights."""
        if any(math.isfinite(loss) for loss in self._losses):
            return ""
        return (
            f"the loss is not finite at outer step {self.outer_step:,}: training has diverged, and would again from "
            "the last checkpoint; a lower algorithm.learning_rate or algorithm.max_gradient_norm may help"
        )

    def _broken_physics(self) -> str:
        """Why the run must stop, or ""."""
        broken = sum(nan for nan, _ in self._resets)
        resets = sum(every for _, every in self._resets)
        most = self._config.environment.max_nan_fraction
        if resets < _FEWEST_RESETS or broken < _FEWEST_NAN_RESETS or broken <= most * resets:
            return ""
        return (
            f"physics turned NaN in {broken:,} of the last {resets:,} resets ({broken / resets:.1%}), and "
            f"environment.max_nan_fraction allows {most:.1%}: smaller actions or another backend may help, "
            "or a larger fraction if that is expected"
        )

    def _save(self, state: PyTree) -> None:
        leaves = checkpoints.to_host(state)
        if not hosts.leads():
            return
        members = zip(
            self._savers, self._seeds, self._configs, self._recorders, self._member_steps, self._returns, strict=True
        )
        for saver, seed, own, recorder, steps, returns in members:
            # A copy: the recorder goes on while the checkpoint is written in the background.
            pending = {name: list(sums) for name, sums in recorder.pending.items()}
            meta = {"steps": steps, "wall_seconds": self.wall_seconds, "pending": pending}
            meta |= {"config": config_io.to_dict(own), checkpoints.SCORE: returns.take()}
            saver.save(self.outer_step, checkpoints.member_leaves(leaves, seed), meta)

    def _wait_for_savers(self) -> None:
        for saver in self._savers:
            saver.wait()

    def _evaluate(self, state: PyTree) -> None:
        """Of each member, unless an earlier start has made it; half of one, as a full disk leaves it, is made anew."""
        self._enter("evaluating")
        learner = evaluation.on_one_device(state.learner)
        members = zip(self._members, self._seeds, self._configs, self._member_steps, strict=True)
        for member, seed, own, steps in members:
            if records.is_evaluated(member, self.outer_step):
                continue
            records.cut_back(member / records.EVALUATIONS_FILE, self.outer_step - 1)
            key = evaluation.evaluation_key(own.seed)
            episodes = self._evaluate_jitted(evaluation.take_member(learner, seed), key)
            lines = evaluation.summarise(episodes, steps, self.outer_step)
            records.append(member / records.EVALUATIONS_FILE, lines)
        self._enter("")

    def _finish(self, trainer: Any, state: PyTree) -> None:
        """The last evaluation and the report, each unless an earlier start has made it."""
        self._evaluate(state)
        seconds = max(self.wall_seconds, 1e-9)
        self.closing_words.append(
            f"trained {self.steps:,} steps in {duration(seconds)} "
            f"({sum(self._member_steps) / seconds:,.0f} steps a second)"
        )
        for member, loss in zip(self._members, self._losses, strict=True):
            if not math.isfinite(loss):
                self._remark(f"{member.name} has diverged: its loss is not finite")
        members = [records.evaluations(member) for member in self._members]
        for lines in zip(*(lines[-len(records.MODES) :] for lines in members), strict=True):
            self.closing_words.append(evaluation.in_words(lines))
        if not self._config.run.report:
            return
        self._enter("drawing the report")
        with self._never_fatal("the report"):
            from purejaxrl_scale.analysis import report

            learner = evaluation.take_member(evaluation.on_one_device(state.learner), self._seeds[0])
            self.closing_words += report.write_reports(self._members, trainer, learner)
        self._enter("")

    @contextlib.contextmanager
    def _never_fatal(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as fault:
            self._log(traceback.format_exc())
            self.closing_words.append(f"{what} could not be made ({type(fault).__name__}: {fault})")

    def _close_mirrors(self) -> None:
        for mirror in self._mirrors:
            mirror.close()


def _precision(config: Config) -> str | None:
    precision = config.devices.matmul_precision
    return None if precision == "default" else precision


def _devices() -> list[dict[str, Any]]:
    kinds = Counter((device.platform, device.device_kind) for device in jax.devices())
    return [{"platform": platform, "kind": kind, "count": count} for (platform, kind), count in kinds.items()]
