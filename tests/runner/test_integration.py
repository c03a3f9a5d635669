"""The run around the real trainer, on CartPole."""

import dataclasses
import os
import shutil
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from purejaxrl_scale import config_io
from purejaxrl_scale.analysis.runs import load_run
from purejaxrl_scale.config import (
    AdaptiveBatchConfig,
    AlgorithmConfig,
    Config,
    EnvironmentConfig,
    EvaluationConfig,
    NetworkConfig,
    ReferenceConfig,
    RunConfig,
)
from purejaxrl_scale.runner import checkpoints, evaluation, folders, records, runner
from purejaxrl_scale.runner.compilation import watch
from purejaxrl_scale.runner.session import Session


def cartpole(folder, **run):
    """12 outer steps of 16 environments x 8 steps."""
    return Config(
        total_steps=12 * 128,
        environment=EnvironmentConfig(name="gymnax/CartPole-v1", num_envs=16, observation_normalisation=True),
        network=NetworkConfig(widths=(8,)),
        algorithm=AlgorithmConfig(rollout_length=8, minibatch_size=64, epochs=2, schedule="linear"),
        evaluation=EvaluationConfig(num_envs=8, max_steps=60),
        run=RunConfig(folder=str(folder), wandb="disabled", progress="none", report=False, **run),
    )


def only_run(folder):
    (run,) = Path(folder).iterdir()
    return run


def untimed(run):
    lines = records.read(run / "metrics.jsonl")
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run with one evaluation at its end, and what its chunk compiled while it ran."""
    folder = tmp_path_factory.mktemp("whole")
    compile_chunk, lowered, during = Session._compile, [], []

    def watched(self, trainer, state):
        chunk = compile_chunk(self, trainer, state)
        lowered.append(trainer)

        def call(*arguments):
            with watch() as log:
                result = chunk(*arguments)
            during.append(log.compiles)
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "_compile", watched)
        assert runner.train(cartpole(folder), "whole") == 0
    return only_run(folder), lowered, during


def test_the_chunk_compiles_exactly_once(whole):
    _, lowered, during = whole
    assert len(lowered) == 1
    assert len(during) >= 3  # chunks, of different lengths
    assert sum(during) == 0


def test_the_record_is_continuous(whole):
    lines = untimed(whole[0])
    assert [line["steps"] for line in lines] == [128 * step for step in range(1, 13)]
    for line in lines:
        assert ("episode/return" in line) == (line["episode/count"] > 0)
        assert all(np.isfinite(line[name]) for name in ("policy/kl_k3", "policy/entropy", "loss/value"))
        assert {name for name in line if name.removesuffix("_se") not in records.METRICS} == set()


def test_evaluation_changes_no_training_bit(whole, tmp_path):
    config = cartpole(tmp_path)
    config = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, every_steps=256))
    assert runner.train(config, "evaluated") == 0
    run = only_run(tmp_path)
    assert len(records.read(run / "evaluations.jsonl")) == 12
    assert len(records.read(whole[0] / "evaluations.jsonl")) == 2
    assert untimed(run) == untimed(whole[0])
    np.testing.assert_equal(checkpoints.restore(run, 12).leaves, checkpoints.restore(whole[0], 12).leaves)


@pytest.fixture
def stopping(monkeypatch):
    """Makes runs stop themselves by SIGTERM once they have taken some outer steps, until it is undone."""
    record = Session._record

    def after(outer_step):
        def recording(self, *arguments, **options):
            taken = record(self, *arguments, **options)
            if self.outer_step >= outer_step and not self._control.stopping:
                os.kill(os.getpid(), signal.SIGTERM)
                self._control.stop.wait(10)
            return taken

        patch = monkeypatch.context()
        patch.__enter__().setattr(Session, "_record", recording)
        return lambda: patch.__exit__(None, None, None)

    return after


def test_stopped_and_resumed_it_ends_in_the_same_bits(whole, tmp_path, stopping):
    undo = stopping(1)
    assert runner.train(cartpole(tmp_path), "stopped") == 75
    undo()
    run = only_run(tmp_path)
    assert checkpoints.steps(run) == [1]
    assert runner.resume(run) == 0
    assert untimed(run) == untimed(whole[0])
    np.testing.assert_equal(checkpoints.restore(run, 12).leaves, checkpoints.restore(whole[0], 12).leaves)
    assert records.read(run / "evaluations.jsonl") == records.read(whole[0] / "evaluations.jsonl")


def restless(folder):
    """Lengths of 4 to 8 that move in each outer step, a reference policy, and moments of advantages."""
    config = cartpole(folder)
    algorithm = dataclasses.replace(
        config.algorithm,
        advantage_center_of_mass=2.0,
        reference=ReferenceConfig(center_of_mass=8.0),
        adaptive_batch=AdaptiveBatchConfig(
            driver="kl",
            minimum=4,
            maximum=8,
            low=1e-6,
            high=1e-2,
            every=1,
            window=3,
            burn_in=1,
            smoothing=0.5,
            span="interval",
        ),
    )
    return dataclasses.replace(config, algorithm=algorithm)


def test_the_outer_loop_resumes_to_the_bit(tmp_path, stopping, capsys):
    """Stopped while the length is between its ends; it, its window and snapshot, reference and moments are restored."""
    assert runner.train(restless(tmp_path / "whole"), "whole") == 0
    undo = stopping(4)
    assert runner.train(restless(tmp_path / "cut"), "cut") == 75
    undo()
    whole, cut = only_run(tmp_path / "whole"), only_run(tmp_path / "cut")
    (saved,) = checkpoints.steps(cut)
    length = checkpoints.restore(cut, saved).leaves["outer_loop/adaptive_batch/length"]
    assert 4 < length < 8
    assert runner.resume(cut) == 0
    assert untimed(cut) == untimed(whole)
    last = checkpoints.steps(whole)[-1]
    np.testing.assert_equal(checkpoints.restore(cut, last).leaves, checkpoints.restore(whole, last).leaves)
    lines = untimed(whole)
    assert lines[-1]["steps"] >= 12 * 128 > lines[-2]["steps"]
    capsys.readouterr()
    assert runner.resume(cut) == 0
    assert "there is nothing to resume" in capsys.readouterr().out


def test_an_adaptive_population_is_recorded_to_the_end_of_each_member(tmp_path):
    assert runner.train(dataclasses.replace(restless(tmp_path), seeds=2), "both") == 0
    for run in Path(tmp_path).iterdir():
        lines = untimed(run)
        assert lines[-1]["steps"] >= 12 * 128 > lines[-2]["steps"]
        assert [line["outer_step"] for line in lines] == list(range(1, len(lines) + 1))


def test_a_run_starts_with_what_another_has_learnt(whole, tmp_path):
    """At a learning rate near 0 the weights stay those of the other run, and so does all that is compared with them."""
    config = restless(tmp_path)
    config = dataclasses.replace(
        config,
        total_steps=128,
        seed=7,
        algorithm=dataclasses.replace(config.algorithm, learning_rate=1e-30),
        run=dataclasses.replace(config.run, start_from=str(whole[0])),
    )
    assert runner.train(config, "later") == 0
    run = only_run(tmp_path)
    first, *_ = lines = untimed(run)
    before, after = checkpoints.restore(whole[0], 12).leaves, checkpoints.restore(run, len(lines)).leaves
    assert first["outer/step_length"] == 0
    assert first["outer/adaptive_divergence"] == pytest.approx(0, abs=1e-6)
    weights = [name for name in before if name.startswith("learner/learnt/params")]
    assert weights
    for name in weights:
        np.testing.assert_array_equal(after[name], before[name])
        np.testing.assert_allclose(after[name.replace("params", "reference/params", 1)], before[name], rtol=1e-6)
        kept = name.removeprefix("learner/learnt/params")
        np.testing.assert_array_equal(after[f"outer_loop/snapshot{kept}"], before[name])
        np.testing.assert_array_equal(after[f"outer_loop/last_params{kept}"], before[name])
    low = "learner/observation_moments/samples/low"
    assert after["steps/low"] == lines[-1]["steps"] >= 128
    assert after[low] == before[low] + after["steps/low"]


def test_a_run_with_a_checkpoint_needs_its_source_no_more(whole, tmp_path, stopping):
    source = shutil.copytree(whole[0], tmp_path / "source")
    undo = stopping(1)
    assert runner.train(cartpole(tmp_path / "later", start_from=str(source)), "later") == 75
    undo()
    shutil.rmtree(source)
    assert runner.resume(only_run(tmp_path / "later")) == 0


def test_a_run_that_cannot_start_from_another_says_why(whole, tmp_path):
    wider = cartpole(tmp_path / "wider", start_from=str(whole[0]))
    wider = dataclasses.replace(wider, network=NetworkConfig(widths=(16,), activation="relu"))
    with pytest.raises(folders.RunError, match=r"network.widths is \(8,\) there and \(16,\) here; network.activation"):
        runner.train(wider, "wider")
    assert not (tmp_path / "wider").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    config_io.save(cartpole(tmp_path), empty / "config.yaml")
    with pytest.raises(folders.RunError, match="has no checkpoint that is complete"):
        runner.train(cartpole(tmp_path / "none", start_from=str(empty)), "none")
    with pytest.raises(folders.RunError, match="is no run"):
        runner.train(cartpole(tmp_path / "none", start_from="nowhere"), "none")
    assert not (tmp_path / "none").exists()


def test_members_of_a_population_have_records_of_their_own(whole, tmp_path):
    """The first outer step is the seed's alone but for the order of sums; later ones let such differences grow."""
    assert runner.train(dataclasses.replace(cartpole(tmp_path), seeds=2), "both") == 0
    first, second = sorted(Path(tmp_path).iterdir())
    assert untimed(first)[0] == pytest.approx(untimed(whole[0])[0], rel=1e-3, abs=1e-5)
    assert untimed(second)[0] != pytest.approx(untimed(whole[0])[0], rel=1e-3, abs=1e-5)
    alone, member = (checkpoints.restore(run, 12).leaves for run in (whole[0], first))
    assert {name: leaf.shape for name, leaf in alone.items()} == {name: leaf.shape for name, leaf in member.items()}
    np.testing.assert_array_equal(alone["key"], member["key"])


def test_a_loaded_policy_is_the_one_that_was_evaluated(whole):
    run = load_run(whole[0])
    assert run.checkpoint().steps == 12 * 128
    episodes = evaluation.make_evaluate(run.trainer)(run.checkpoint().learner, evaluation.evaluation_key(0))
    assert evaluation.summarise(episodes, 12 * 128, 12) == records.read(whole[0] / "evaluations.jsonl")
    action = run.policy(np.zeros(4, np.float32), deterministic=True)
    assert action.shape == ()
    samples = {int(run.policy(np.zeros(4, np.float32), jax.random.key(seed))) for seed in range(30)}
    assert samples == {0, 1}
    with pytest.raises(ValueError, match="needs a key"):
        run.policy(np.zeros(4, np.float32))
