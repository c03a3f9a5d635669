"""Sweeps: what trains at once, records equal to those of runs alone, failures, continuing, refusals."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from purejaxrl_scale import cli, config_io, launchers, sweep, sweep_file, sweep_runner
from purejaxrl_scale.config_io import ConfigError
from purejaxrl_scale.runner import folders, records

SIZES = [
    *("--environment.num_envs", "16", "--algorithm.rollout_length", "8", "--algorithm.minibatch_size", "64"),
    *("--algorithm.epochs", "2", "--network.widths", "8", "--monitors.samples", "64", "--evaluation.num_envs", "8"),
    *("--evaluation.max_steps", "20", "--total-steps", "1280", "--no-run.report", "--run.wandb", "disabled"),
    *("--run.progress", "plain", "--devices.count", "1"),
]


def write(tmp_path, parameters, method="grid", more=""):
    path = tmp_path / "small.yaml"
    words = json.dumps(["${program}", "train", "cartpole", *SIZES, "--run.folder", str(tmp_path / "runs"), "${args}"])
    path.write_text(f"program: purejaxrl-scale\ncommand: {words}\nmethod: {method}\nparameters: {parameters}\n{more}")
    return path


def plan(tmp_path, parameters, fits=lambda config: True):
    members = sweep.members(sweep_file.read(str(write(tmp_path, parameters))))
    return sweep.groups(members, fits)


def run(path, *more):
    """In a process of its own, as a user would: it takes signals and starts processes."""
    words = [sys.executable, "-m", "purejaxrl_scale", "sweep", str(path), *more]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)


def learnt(path):
    """All that a record says but for the clock."""
    lines = records.read(path / records.METRICS_FILE)
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


TWO = "{algorithm.learning_rate: {values: [0.001, 0.01]}, seed: {values: [0, 5]}}"


def test_traced_numbers_and_seeds_train_at_once(tmp_path):
    groups = plan(
        tmp_path, "{algorithm.clip: {values: [0.1, 0.2]}, algorithm.epochs: {values: [1, 2]}, seed: {values: [0, 1]}}"
    )
    assert [len(group.members) for group in groups] == [4, 4]
    assert [group.config.algorithm.epochs for group in groups] == [1, 2]
    assert [member.folder.name for member in groups[0].members] == [
        f"clip-{clip}_epochs-1_seed-{seed}" for clip in (0.1, 0.2) for seed in (0, 1)
    ]


def test_none_and_a_number_are_two_programs(tmp_path):
    groups = plan(tmp_path, "{algorithm.reference.center_of_mass: {values: [null, 4, 16]}}")
    assert [len(group.members) for group in groups] == [1, 2]


def test_what_evaluations_act_by_is_one_for_a_population(tmp_path):
    groups = plan(tmp_path, "{algorithm.name: {value: pqn}, algorithm.exploration_end: {values: [0.01, 0.05]}}")
    assert [len(group.members) for group in groups] == [1, 1]


def test_a_population_of_seeds_becomes_members(tmp_path):
    (group,) = plan(tmp_path, "{seeds: {value: 3}, seed: {value: 7}}")
    assert [member.config.seed for member in group.members] == [7, 8, 9]
    assert all(member.config.seeds == 1 for member in group.members)


def test_memory_splits_a_population_into_equal_parts(tmp_path):
    groups = plan(tmp_path, "{seed: {min: 0, max: 9}}", fits=lambda config: config.seeds <= 4)
    assert [len(group.members) for group in groups] == [4, 4, 2]
    with pytest.raises(ConfigError, match="even alone"):
        plan(tmp_path, "{seed: {min: 0, max: 9}}", fits=lambda config: False)


def test_exact_reduction_takes_no_population(tmp_path):
    groups = plan(tmp_path, "{devices.exact_reduction: {value: true}, seed: {values: [0, 1]}}")
    assert [len(group.members) for group in groups] == [1, 1]


def test_long_and_odd_values_have_folders_of_their_own(tmp_path):
    values = '["a b", "a/b", "a_b"]'
    members = sweep.members(sweep_file.read(str(write(tmp_path, f"{{run.wandb_project: {{values: {values}}}}}"))))
    assert len({member.folder for member in members}) == 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A sweep of four runs in one population, and what it printed."""
    folder = tmp_path_factory.mktemp("sweep")
    path = write(folder, TWO, more="metric: {name: episode/return, goal: maximize}")
    result = run(path)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder, path, result.stdout


def test_a_member_learns_what_the_run_alone_learns(finished, tmp_path):
    """To the rounding of sums, which vmap orders differently, in the first outer step; later a rounding may grow."""
    folder, _, _ = finished
    flags = ["--algorithm.learning_rate", "0.01", "--seed", "5", "--run.folder", str(tmp_path)]
    assert cli.main(["train", "cartpole", *SIZES, *flags]) == 0
    (alone,) = tmp_path.iterdir()
    member = learnt(folder / "runs" / "small" / "learning_rate-0.01_seed-5")
    single = learnt(alone)
    assert len(member) == len(single) == 10
    assert member[0].keys() == single[0].keys()
    for name, value in single[0].items():
        assert member[0][name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_members_differ_by_their_numbers(finished):
    folder, _, _ = finished
    runs = [folder / "runs" / "small" / f"learning_rate-{rate}_seed-5" for rate in (0.001, 0.01)]
    first, second = (learnt(run) for run in runs)
    assert second[0]["optimiser/learning_rate"] == pytest.approx(10 * first[0]["optimiser/learning_rate"])
    assert first[0]["episode/count"] == second[0]["episode/count"]  # the same experience before the first update
    assert first[-1]["loss/total"] != second[-1]["loss/total"]


def test_it_says_what_is_best(finished):
    _, _, printed = finished
    assert "4 runs in 1 group, 1 program to compile, 5,120 environment steps in all" in printed
    assert "episode/return, the best first" in printed
    assert "learning_rate 0.01" in printed


def test_a_second_start_finds_nothing_missing(finished):
    folder, path, _ = finished
    before = {
        run: (run / records.METRICS_FILE).stat().st_mtime_ns for run in (folder / "runs" / "small").glob("*_seed-*")
    }
    result = run(path)
    assert result.returncode == 0, result.stderr
    after = {one: (one / records.METRICS_FILE).stat().st_mtime_ns for one in before}
    assert before == after
    assert "the best first" in result.stdout


def test_a_dry_run_starts_nothing_and_says_how_far_it_is(finished, tmp_path, capsys):
    _, path, _ = finished
    assert cli.main(["sweep", str(path), "--dry-run"]) == 0
    assert "4 done" in capsys.readouterr().out
    assert cli.main(["sweep", str(write(tmp_path, TWO)), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "4 new" in said
    assert "0.001, 0.01" in said
    assert not (tmp_path / "runs").exists()


def test_another_config_under_the_same_name_is_refused(finished, capsys):
    _, path, _ = finished
    assert cli.main(["sweep", str(path), "--algorithm.epochs", "3"]) == 2
    said = capsys.readouterr().err
    assert "algorithm.epochs was 2 and is 3" in said


def test_a_stopped_sweep_goes_on(tmp_path):
    more = "--total-steps=400000"
    path = write(tmp_path, "{seed: {values: [0, 1]}}")
    words = [sys.executable, "-m", "purejaxrl_scale", "sweep", str(path), more]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    member = tmp_path / "runs" / "small" / "seed-0"
    deadline = time.monotonic() + 300
    while not records.last_line(member / records.METRICS_FILE):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 75, said
    assert "The same command goes on" in said
    taken = sweep.steps_of(sweep.Member(member, config_io.load(member / "config.yaml"), {}))
    assert 0 < taken < 400_000
    result = run(path, more)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line["outer_step"] for line in learnt(member)] == list(range(1, 3126))


def test_a_member_that_fails_does_not_stop_the_rest(tmp_path, monkeypatch):
    """A group whose members fail together is taken apart, and those that can go on do."""

    class Launcher:
        """Populations fail, and so does seed 1 alone."""

        running = False

        def __init__(self, tasks):
            self._codes = [1 if len(task.runs) > 1 or task.runs[0].name == "seed-1" else 0 for task in tasks]
            for task in tasks:
                task.log.write_text("failed: physics turned NaN\n")

        def poll(self):
            return self._codes

        def stop(self):
            raise AssertionError

    monkeypatch.setattr(launchers, "Local", Launcher)
    path = write(tmp_path, "{seed: {values: [0, 1, 2]}}")
    file = sweep_file.read(str(path))
    code = sweep_runner.main(file, [], dry_run=False)
    assert code == 1
    failures = records.read(tmp_path / "runs" / "small" / sweep_runner.FAILURES_FILE)
    assert failures == [{"run": "seed-1", "why": "physics turned NaN"}]
    assert not list((tmp_path / "runs" / "small").glob("*/population.json"))


def test_a_population_that_is_refused_stays_whole(tmp_path, monkeypatch):
    """As while a process that has outlived its sweep still trains it: its members must not be trained twice."""

    class Launcher:
        running = False

        def __init__(self, tasks):
            self._tasks = tasks
            for task in tasks:
                task.log.write_text("  - it is being trained by another process\n")

        def poll(self):
            return [2 for _ in self._tasks]

        def stop(self):
            raise AssertionError

    monkeypatch.setattr(launchers, "Local", Launcher)
    file = sweep_file.read(str(write(tmp_path, "{seed: {values: [0, 1]}}")))
    assert sweep_runner.main(file, [], dry_run=False) == 1
    assert len(list((tmp_path / "runs" / "small").glob("*/population.json"))) == 2
    failures = records.read(tmp_path / "runs" / "small" / sweep_runner.FAILURES_FILE)
    assert [line["run"] for line in failures] == ["seed-0", "seed-1"]


def test_a_member_that_diverged_has_failed(tmp_path, monkeypatch):
    class Launcher:
        running = False

        def __init__(self, tasks):
            self._tasks = tasks
            for run in (run for task in tasks for run in task.runs):
                line = {"steps": 1280, "outer_step": 10, "loss/total": None if run.name == "seed-1" else 0.5}
                records.append(run / records.METRICS_FILE, [line])
                modes = ({"steps": 1280, "outer_step": 10, "mode": mode, "mean": 3.0} for mode in records.MODES)
                records.append(run / records.EVALUATIONS_FILE, modes)

        def poll(self):
            return [0 for _ in self._tasks]

        def stop(self):
            raise AssertionError

    monkeypatch.setattr(launchers, "Local", Launcher)
    file = sweep_file.read(str(write(tmp_path, "{seed: {values: [0, 1]}}")))
    assert sweep_runner.main(file, [], dry_run=False) == 1
    failures = records.read(tmp_path / "runs" / "small" / sweep_runner.FAILURES_FILE)
    assert failures == [{"run": "seed-1", "why": "diverged: the loss is not finite"}]


def test_folders_that_a_kill_left_half_made_are_made_again(tmp_path):
    parameters = "{seed: {values: [0, 1, 2]}}"
    (group,) = plan(tmp_path, parameters)
    sweep.create(group)
    (group.members[2].folder / "config.yaml").unlink()
    (again,) = plan(tmp_path, parameters)
    assert again == group
    sweep.create(again)
    (whole,) = plan(tmp_path, parameters)
    assert [member.folder for member in whole.members] == folders.members_of(whole.folder)
    assert len(whole.members) == 3


def test_each_gpu_has_a_group_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    show = "import os, time; print(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(1)"
    monkeypatch.setattr(launchers, "command", lambda task: [sys.executable, "-c", show])
    tasks = [launchers.Task([tmp_path], tmp_path / f"{index}.log") for index in range(3)]
    launcher = launchers.Local(tasks)
    launcher.poll()
    assert launcher.running
    while None in (codes := launcher.poll()):
        time.sleep(0.05)
    assert codes == [0, 0, 0]
    seen = [task.log.read_text().strip() for task in tasks]
    assert sorted(seen[:2]) == ["2", "5"]
    assert seen[2] in seen[:2]


@pytest.mark.parametrize(
    ("parameters", "flags", "words"),
    [
        ("{algorithm.epochs: {values: [0, 2]}}", [], ["algorithm.epochs", "epochs-0"]),
        ("{total_steps: {values: [1.5]}}", [], ["whole number"]),
        ("{seed: {values: [0]}}", ["--algorithm.epoch", "3"], ["algorithm.epochs"]),
        ("{seed: {values: [0]}}", ["--memory", "80"], ["80GB"]),
        (
            "{seed: {values: [0]}}",
            ["--devices.coordinator", "auto", "--devices.processes", "2"],
            ["devices.coordinator"],
        ),
    ],
)
def test_what_is_wrong_is_refused_before_anything_starts(tmp_path, capsys, parameters, flags, words):
    assert cli.main(["sweep", str(write(tmp_path, parameters)), *flags]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert not (tmp_path / "runs").exists()


def test_a_metric_that_no_run_has_is_refused(tmp_path, capsys):
    path = write(tmp_path, "{seed: {values: [0]}}", more="metric: {name: episode/retrn}")
    assert cli.main(["sweep", str(path)]) == 2
    assert "episode/return" in capsys.readouterr().err


def test_what_a_wandb_agent_prints_is_read(tmp_path):
    """Switches as --flag=False, whole numbers as floats, lists and None as Python prints them."""
    from purejaxrl_scale.arguments import choose

    printed = [
        "--environment.staggered=False",
        "--total_steps=1e6",
        "--algorithm.epochs=2.0",
        "--network.widths=[8, 8]",
        "--algorithm.reference.center_of_mass=None",
    ]
    choice = choose(["cartpole", *printed], "train")
    assert choice is not None
    config = choice.config
    assert (config.environment.staggered, config.total_steps, config.algorithm.epochs) == (False, 1_000_000, 2)
    assert (config.network.widths, config.algorithm.reference.center_of_mass) == ((8, 8), None)


def test_every_sweep_of_the_repository_is_legal():
    paths = sorted((Path(__file__).parents[1] / "sweeps").glob("*.yaml"))
    assert paths
    for path in paths:
        assert sweep.members(sweep_file.read(str(path)))
