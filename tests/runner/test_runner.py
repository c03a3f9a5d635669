import dataclasses
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from purejaxrl_scale import config_io
from purejaxrl_scale.runner import checkpoints, folders, records, runner
from purejaxrl_scale.runner.folders import RunError
from purejaxrl_scale.runner.pace import Pace
from purejaxrl_scale.runner.session import Session

ROOT = Path(__file__).parents[2]


def only_run(config):
    (run,) = Path(config.run.folder).iterdir()
    return run


def metrics(run):
    """The record without the clock's columns."""
    lines = records.read(run / records.METRICS_FILE)
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def leaves(run, step=20):
    return checkpoints.restore(run, step).leaves


def replace(config, **groups):
    return dataclasses.replace(
        config, **{name: dataclasses.replace(getattr(config, name), **fields) for name, fields in groups.items()}
    )


def same_ending(one, other):
    assert metrics(one) == metrics(other)
    np.testing.assert_equal(leaves(one), leaves(other))
    assert records.read(one / "evaluations.jsonl") == records.read(other / "evaluations.jsonl")


@pytest.fixture
def signal_after(monkeypatch):
    """Sends this process a signal once a session has recorded an outer step."""

    def arrange(step, number=signal.SIGTERM):
        record = Session._record

        def recording(self, *arguments, **options):
            before = self.outer_step
            taken = record(self, *arguments, **options)
            if before < step <= self.outer_step:
                os.kill(os.getpid(), number)
                # The handler runs in the main thread; wait for it, so that the test does not depend on timing.
                self._control.stop.wait(10)
            return taken

        monkeypatch.setattr(Session, "_record", recording)

    return arrange


def test_a_run_leaves_a_complete_record(config, trainers):
    assert runner.train(config, "my run") == 0
    run = only_run(config)
    assert run.name.startswith("my_run-0-")
    assert config_io.load(run / "config.yaml") == config
    environment = json.loads((run / "environment.json").read_text())
    assert environment["versions"]["jax"]
    assert environment["devices"][0]["count"] == 8
    lines = records.read(run / "metrics.jsonl")
    assert [line["outer_step"] for line in lines] == list(range(1, 21))
    assert [line["steps"] for line in lines] == list(range(32, 641, 32))
    assert ["episode/return" in line for line in lines] == [step % 2 == 1 for step in range(1, 21)]
    assert lines[0]["episode/success"] == 0.5
    assert lines[0]["value/explained_variance"] is None
    assert [line["mode"] for line in records.read(run / "evaluations.jsonl")] == ["deterministic", "stochastic"]
    assert checkpoints.steps(run) == [20]


def test_intervals_of_the_record(config, trainers):
    config = replace(config, run={"log_every": 8})
    assert runner.train(config, "x") == 0
    lines = records.read(only_run(config) / "metrics.jsonl")
    assert [line["outer_step"] for line in lines] == [8, 16, 20]
    assert [line["episode/count"] for line in lines] == [8, 8, 4]


def test_steps_beyond_31_bits_reach_the_record(config, trainers):
    trainers.options = {"start_steps": 2**33}
    assert runner.train(config, "x") == 0
    assert metrics(only_run(config))[0]["steps"] == 2**33 + 32


def test_stopping_and_resuming_changes_no_bit(config, trainers, tmp_path, signal_after, capsys):
    config = replace(config, run={"log_every": 3}, evaluation={"every_steps": 128})
    assert runner.train(config, "whole") == 0
    whole = only_run(config)
    cut = replace(config, run={"folder": str(tmp_path / "cut")})
    signal_after(5)
    assert runner.train(cut, "cut") == 75
    run = only_run(cut)
    assert len(checkpoints.steps(run)) == 1
    assert 5 <= checkpoints.steps(run)[0] < 20
    assert f"purejaxrl-scale resume {run}" in capsys.readouterr().out
    assert runner.resume(run) == 0
    same_ending(run, whole)


def test_after_a_crash_the_record_is_cut_back_to_the_checkpoint(config, trainers, tmp_path, monkeypatch, capsys):
    assert runner.train(config, "whole") == 0
    whole = only_run(config)
    crashing = replace(config, run={"folder": str(tmp_path / "cut")}, checkpoint={"every_seconds": 0.0})
    save = Session._save

    def crash(self, state):
        if self.outer_step > 12:
            raise MemoryError("as if killed")
        save(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_save", crash)
        assert runner.train(crashing, "cut") == 1
    assert "MemoryError: as if killed" in capsys.readouterr().err
    run = only_run(crashing)
    assert "Traceback" in (run / "run.log").read_text()
    last = checkpoints.steps(run)[-1]
    assert len(metrics(run)) > last
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"outer_step": 99')
    # What a save that was killed leaves behind is never picked.
    (run / "checkpoints" / "19.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
    (run / "checkpoints" / "18" / "state").mkdir(parents=True)
    assert runner.resume(run) == 0
    assert f"outer step {last} of 20" in capsys.readouterr().out
    same_ending(run, whole)


def test_an_unreadable_checkpoint_is_an_error(config, trainers, signal_after, capsys):
    signal_after(5)
    runner.train(config, "x")
    run = only_run(config)
    (step,) = checkpoints.steps(run)
    for file in (run / "checkpoints" / str(step) / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    before = metrics(run)
    assert runner.resume(run) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert metrics(run) == before


def test_without_a_checkpoint_a_young_run_starts_again_and_an_old_one_is_refused(
    config, trainers, signal_after, capsys
):
    assert runner.train(config, "x") == 0
    run = only_run(config)
    whole, ending = metrics(run), leaves(run)
    (run / "checkpoints" / "20").rename(run / "gone")
    assert runner.resume(run) == 0
    assert "starts again" in capsys.readouterr().out
    assert metrics(run) == whole
    np.testing.assert_equal(leaves(run), ending)
    (run / "checkpoints" / "20").rename(run / "gone-again")
    records.append(run / "metrics.jsonl", [{"outer_step": 21, "time/wall_seconds": 1e5}])
    with pytest.raises(RunError, match="must have had checkpoints"):
        runner.resume(run)


def test_a_finished_run_says_so(config, trainers, capsys):
    runner.train(config, "x")
    count = len(trainers)
    assert runner.resume(only_run(config)) == 0
    assert "nothing to resume" in capsys.readouterr().out
    assert len(trainers) == count


def test_resuming_makes_up_for_a_missing_evaluation(config, trainers):
    runner.train(config, "x")
    run = only_run(config)
    before = records.read(run / "evaluations.jsonl")
    (run / "evaluations.jsonl").unlink()
    assert runner.resume(run) == 0
    assert records.read(run / "evaluations.jsonl") == before


def test_members_of_a_population_are_runs_of_their_own(config, trainers, tmp_path, signal_after):
    alone = dataclasses.replace(replace(config, run={"folder": str(tmp_path / "alone")}), seed=4)
    assert runner.train(alone, "x") == 0
    config = dataclasses.replace(config, seed=3, seeds=3)
    signal_after(5)
    assert runner.train(config, "x") == 75
    members = sorted(Path(config.run.folder).iterdir())
    assert [config_io.load(member / "config.yaml").seed for member in members] == [3, 4, 5]
    assert runner.resume(members[2]) == 0
    same_ending(members[1], only_run(alone))
    assert metrics(members[0]) != metrics(members[1])


@pytest.mark.parametrize("left", [0, 1], ids=["none", "half of it"])
def test_a_member_whose_last_evaluation_is_missing_is_evaluated(config, trainers, left):
    """As where a signal came between two members' evaluations, or the disk was full."""
    config = dataclasses.replace(config, seeds=2)
    assert runner.train(config, "x") == 0
    first, second = sorted(Path(config.run.folder).iterdir())
    whole = [records.read(member / "evaluations.jsonl") for member in (first, second)]
    lines = (second / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (second / "evaluations.jsonl").write_text("".join(lines[:left]))
    assert runner.resume(first) == 0
    assert [records.read(member / "evaluations.jsonl") for member in (first, second)] == whole


def test_a_population_that_cannot_be_read_is_refused(config, trainers):
    config = dataclasses.replace(config, seeds=2)
    assert runner.train(config, "x") == 0
    member = next(Path(config.run.folder).iterdir())
    (member / "population.json").write_text("")
    with pytest.raises(RunError, match=r"population.json cannot be read"):
        runner.resume(member)


def test_evaluations_come_when_due_and_change_nothing(config, trainers, tmp_path):
    assert runner.train(config, "x") == 0
    often = replace(config, run={"folder": str(tmp_path / "often")}, evaluation={"every_steps": 200, "episodes": 2})
    assert runner.train(often, "x") == 0
    lines = records.read(only_run(often) / "evaluations.jsonl")
    assert [line["steps"] for line in lines[::2]] == [224, 416, 608, 640]
    assert {line["n"] for line in lines} == {8}
    assert metrics(only_run(often)) == metrics(only_run(config))
    np.testing.assert_equal(leaves(only_run(often)), leaves(only_run(config)))


def test_the_chunk_is_compiled_once(config, trainers):
    assert runner.train(config, "x") == 0
    assert trainers[0].counts["lowered"] == 1


def test_nan_physics_stops_the_run_with_its_state_saved(config, trainers, capsys):
    trainers.options = {"nan_resets": 20}
    assert runner.train(config, "x") == 1
    error = capsys.readouterr().err
    assert "20.0%" in error
    assert "environment.max_nan_fraction allows 1.0%" in error
    run = only_run(config)
    assert checkpoints.steps(run) == [metrics(run)[-1]["outer_step"]]


def test_a_few_nan_resets_are_borne(config, trainers):
    trainers.options = {"nan_resets": 1}
    assert runner.train(config, "x") == 0


def test_a_folder_that_cannot_be_written_is_refused(config, trainers, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"run\.folder"):
        runner.train(replace(config, run={"folder": str(tmp_path / "file")}), "x")
    assert not trainers


def test_runs_of_the_same_second_do_not_meet(config, monkeypatch):
    monkeypatch.setattr("purejaxrl_scale.runner.folders.time.strftime", lambda _: "NOW")
    names = [folders.create(config, "x")[0].name for _ in range(3)]
    assert names == ["x-0-NOW", "x-0-NOW-2", "x-0-NOW-3"]


def test_a_run_that_goes_on_cannot_be_resumed(config, trainers):
    runner.train(config, "x")
    run = only_run(config)
    (run / "evaluations.jsonl").unlink()
    with runner._sole_writer(run), pytest.raises(RunError, match="another process"):
        runner.resume(run)


def test_handlers_are_given_back(config, trainers):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    runner.train(config, "x")
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_chunks_aim_at_their_seconds():
    pace = Pace(seconds=5.0, limit=512)
    assert pace.choose(1000) == 1
    pace.measure(1, 0.1)
    assert pace.choose(1000) == 8  # 50 would fit, but one measurement is not trusted that far
    pace.measure(8, 0.8)
    assert pace.choose(1000) == 50
    assert pace.choose(7) == 7
    pace.measure(50, 1e-9)
    assert pace.choose(10_000) == 400
    pace.measure(400, 1e-9)
    assert pace.choose(10_000) == 512
    pace.measure(512, 1e6)
    assert pace.choose(10_000) == 1


def test_a_second_start_takes_the_program_from_the_cache(config, trainers, tmp_path, compile_cache):
    for start in range(2):
        own = replace(config, run={"folder": str(tmp_path / str(start))})
        assert runner.train(own, "x") == 0
        origin = "(from the cache)" if start else "(not in the cache)"
        assert origin in (only_run(own) / "run.log").read_text()
