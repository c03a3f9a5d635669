"""Commands: what they run, what they refuse and how, and that neither help nor a refusal imports JAX."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import purejaxrl_scale.analysis
import purejaxrl_scale.runner
from purejaxrl_scale import cli, config_io
from purejaxrl_scale.config import Config
from purejaxrl_scale.named_experiments import load_experiment, names


def refused(capsys, *arguments: str) -> str:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    assert captured.out == ""
    return captured.err


def test_train_takes_overrides_and_gives_the_runners_exit_code(runs, capsys):
    code = cli.main(["train", "kinetix_s", "--environment.num-envs", "256", "--total_steps", "200_000", "--seed=7"])
    assert code == 75
    config = runs.configs[0]
    assert (config.environment.num_envs, config.total_steps, config.seed) == (256, 200_000, 7)
    assert runs.names == ["kinetix_s"]
    out = " ".join(capsys.readouterr().out.split())
    assert "262,144 (asked: 200,000; rounded up to whole outer steps)" in out
    assert "8 epochs x 4 minibatches of 16,384 = 32 optimiser steps, 128 in all" in out


def test_train_without_a_name_is_the_quickstart(runs):
    cli.main(["train", "--run.name", "mine"])
    assert runs.configs[0] == config_io.replace(load_experiment("quickstart"), {"run.name": "mine"})
    assert runs.names == ["mine"]


def test_presets_come_before_overrides(runs):
    cli.main(["train", "cartpole", "--algorithm.epochs", "2", "--preset", "small"])
    config = runs.configs[0]
    assert config == config_io.replace(load_experiment("cartpole", "small"), {"algorithm.epochs": 2})
    assert config.total_steps == 500_000


@pytest.mark.parametrize(
    ("tokens", "value"),
    [
        (["--environment.staggered"], True),
        (["--environment.staggered", "--seed", "1"], True),
        (["--environment.staggered=True"], True),
        (["--environment.staggered", "true"], True),
        (["--environment.staggered=False"], False),
        (["--environment.staggered", "False"], False),
        (["--environment.no-staggered"], False),
        (["--environment.no_staggered"], False),
        (["--no-environment.staggered"], False),
    ],
)
def test_switches_take_every_form(runs, tokens, value):
    cli.main(["train", "cartpole", *tokens])
    assert runs.configs[0].environment.staggered is value


@pytest.mark.parametrize("tokens", [["128", "32"], ["128,32"], ["[128, 32]"]])
def test_lists_take_every_form(runs, tokens):
    cli.main(["train", "cartpole", "--network.widths", *tokens, "--seed", "1"])
    assert runs.configs[0].network.widths == (128, 32)


def test_a_list_may_be_empty(runs):
    cli.main(["train", "cartpole", "--network.widths", "", "--seed", "1"])
    assert runs.configs[0].network.widths == ()


def test_negative_values_are_values(runs):
    cli.main(["train", "brax_ant", "--network.initial-log-std", "-0.5"])
    assert runs.configs[0].network.initial_log_std == -0.5


@pytest.mark.parametrize("separator", [" ", ","])
def test_changes_take_every_form(runs, capsys, separator):
    texts = ("algorithm.clip=0.1@1e5", "algorithm.learning_rate=1e-4@2e5")
    cli.main(["train", "cartpole", "--changes", *separator.join(texts).split(), "--seed", "1"])
    assert runs.configs[0].changes == texts
    out = capsys.readouterr().out
    assert all(text in out for text in texts)


def test_an_optional_number_is_switched_off_by_none(runs):
    cli.main(["train", "cartpole", "--algorithm.reference.center-of-mass", "8"])
    cli.main(["train", "cartpole", "--algorithm.reference.center-of-mass=none"])
    assert [config.algorithm.reference.center_of_mass for config in runs.configs] == [8.0, None]


PAPER = (
    *("train", "cartpole", "--environment.num-envs", "2048", "--algorithm.rollout-length", "256"),
    *("--algorithm.minibatch-size", "16384", "--algorithm.learning-rate", "5e-5"),
)


def test_scaling_is_applied_and_told(runs, capsys):
    cli.main([*PAPER, "--scaling.num-envs", "65536", "--scaling.recipe", "sqrt_learning_rate"])
    config = runs.configs[0]
    assert (config.environment.num_envs, config.algorithm.minibatch_size) == (65_536, 524_288)
    assert config.scaling.num_envs == 65_536
    out = " ".join(capsys.readouterr().out.split())
    assert "scaled 2,048 -> 65,536 environments by sqrt_learning_rate" in out
    assert "524,288" in out
    assert f"{5e-5 * 32**0.5:g}" in out
    cli.main(PAPER)
    assert "scaled" not in capsys.readouterr().out


def test_scaling_that_does_not_come_out_is_one_problem_of_all(capsys):
    hybrid = ("--scaling.num-envs", "2056", "--scaling.recipe", "hybrid")
    err = refused(capsys, *PAPER, *hybrid)
    assert "1 problem" in err
    # 2,048 environments have 32 minibatches, or 2 that are 16 times as large: one for each 1,024.
    assert "no whole number of at least 1; the nearest legal scaling.num_envs are 2,048 or 3,072" in err
    assert "3 problems" in refused(capsys, *PAPER, *hybrid, "--devices.count", "3", "--seed", "-1")
    # What is out of its range is told as such, and nothing is scaled by it.
    err = refused(capsys, *PAPER, "--scaling.num-envs", "4096", *hybrid[2:], "--scaling.size-factor", "0")
    assert "1 problem" in err
    assert "scaling.size_factor must be at least 1" in err


def test_the_header_says_only_what_holds_where_lengths_adapt(runs, capsys):
    adaptive = ("--algorithm.adaptive-batch.driver", "kl", "--algorithm.reference.center-of-mass", "8")
    cli.main([*PAPER, *adaptive, "--total-steps", "1e6"])
    out = " ".join(capsys.readouterr().out.split())
    # 1e6 steps are 30.5 of the shortest rollouts.
    assert "at most 31 of 2,048 environments x 16 to 64 steps = 32,768 to 131,072 samples" in out
    assert "2 minibatches of 16,384 to 65,536" in out
    assert "rounded up" not in out
    assert "in all" not in out
    assert "average over 8 optimiser steps" in out


@pytest.mark.parametrize("text", ["1e9", "1_000_000_000", "1000000000"])
def test_total_steps_are_exact(runs, text):
    cli.main(["train", "cartpole", "--total-steps", text])
    assert runs.configs[0].total_steps == 10**9


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "cartpole", "--environment.num-env", "8"], "did you mean environment.num-envs"),
        (["train", "cartpole", "--num_envs", "8"], "did you mean environment.num_envs"),
        (["train", "cartpol"], "did you mean cartpole?"),
        (["train", "./no_such_file.py"], "there is no file ./no_such_file.py"),
        (["train", "cartpole", "--preset", "smal"], "did you mean small?"),
        (["train", "cartpole", "--preset"], "--preset needs a value"),
        (["train", "cartpole", "--prest", "small"], "did you mean --preset?"),
        (["train", "cartpole", "--textbook"], "there is no field textbook"),
        (["bench", "cartpole", "--seconds", "0"], "--seconds must be greater than 0"),
        (["bench", "cartpole", "--seconds", "long"], "seconds takes a finite number"),
        (["train", "cartpole", "--total-steps", "1.5"], "the nearest are 1 and 2"),
        (["train", "cartpole", "--seed"], "--seed needs a value"),
        (
            ["train", "cartpole", "--network.widths"],
            '--network.widths needs values; an empty list is written --network.widths ""',
        ),
        (["evaluate", "latest", "--checkpoint", "last"], "--checkpoint takes newest or best: it is 'last'"),
        (["render", "latest", "--protocol", "kinetix"], "there is no field protocol"),
        (["render", "latest", "--seed", "1"], "render takes no --seed"),
        (["train", "cartpole", "--seed", "--seeds", "2"], "--seed needs a value"),
        (["train", "cartpole", "kinetix_s"], "unexpected 'kinetix_s'"),
        (["train", "cartpole", "--algorithm.schedule", "liner"], "did you mean linear?"),
        (["train", "cartpole", "--environment.no-staggered=True"], "takes no value"),
        (["train", "cartpole", "--environment.name", "brax/ants"], "brax/ant"),
        (["trian"], "did you mean train?"),
        (["list", "all"], "list takes no arguments"),
        (["report"], "report needs at least one run"),
        (["resume"], "resume needs one run"),
        (["resume", "a", "b"], "2 were given"),
    ],
)
def test_refusals(capsys, monkeypatch, tmp_path, arguments, expected):
    monkeypatch.chdir(tmp_path)
    assert expected in refused(capsys, *arguments)


def test_faults_of_all_kinds_are_told_at_once(capsys):
    err = refused(capsys, "train", "cartpole", "--seed", "-1", "--sed", "2", "--total-steps", "x", "--run.wandb", "of")
    assert "4 problems" in err
    assert err.count("\n  - ") == 4


def test_impossible_combinations_are_told_beside_unread_values(capsys):
    """But none that would rest on a value which could not be read, and is not the user's own."""
    bad = ("train", "cartpole", "--total-steps", "x", "--devices.count", "3")
    err = refused(capsys, *bad, "--environment.num-envs", "1000")
    assert "3 problems" in err
    err = refused(capsys, *bad, "--environment.num-envs", "many", "--algorithm.minibatch-size", "1000")
    assert "3 problems" in err
    assert "must divide the batch" not in err
    err = refused(capsys, *bad, "--environment.numenvs", "1000", "--algorithm.minibatch-size", "1000")
    assert "3 problems" in err
    assert "must divide the batch" not in err


def test_impossible_combinations_are_told_at_once(capsys):
    err = refused(capsys, "train", "cartpole", "--environment.num-envs", "1000", "--devices.count", "3")
    assert "2 problems" in err
    assert "num_envs: 512 or 1,024" in err


def test_a_users_own_file_works_by_path(runs, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_idea.py").write_text(
        '"""Mine."""\nfrom purejaxrl_scale.config import Config\nCONFIG = Config(total_steps=1e6, seed=3)\n'
    )
    assert cli.main(["train", "./my_idea.py"]) == 75
    assert runs.names == ["my_idea"]
    assert runs.configs[0].total_steps == 1_000_000
    assert type(runs.configs[0].total_steps) is int


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CONFIG = 3", "must set CONFIG = Config(...)"),
        ("x = (", "line 1: SyntaxError"),
        ("\nimport no_such_module", "line 2: ModuleNotFoundError"),
        (
            "from purejaxrl_scale.config import *\nCONFIG = Config(environment=EnvironmentConfig(num_env=8))",
            "did you mean environment.num_envs",
        ),
        ("from purejaxrl_scale.config import *\nCONFIG = Config(total_steps=1.5)", "total_steps takes a whole number"),
        ("from purejaxrl_scale.config import *\nCONFIG = Config()\nPRESETS = [1]", "PRESETS must map names"),
    ],
)
def test_a_broken_file_is_refused(capsys, monkeypatch, tmp_path, text, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_idea.py").write_text(text)
    assert expected in refused(capsys, "train", "my_idea.py")


def test_a_file_without_its_ending_is_suggested(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_idea.py").write_text("")
    assert "did you mean the file ./my_idea.py?" in refused(capsys, "train", "my_idea")


@pytest.mark.parametrize("command", ["resume", "evaluate", "render"])
def test_runs_are_found_by_path_name_or_latest(runs, monkeypatch, tmp_path, capsys, command):
    monkeypatch.chdir(tmp_path)
    for index, name in enumerate(["first-0", "second-0"]):
        (tmp_path / "runs" / name).mkdir(parents=True)
        path = tmp_path / "runs" / name / "config.yaml"
        config_io.save(Config(), path)
        os.utime(path, (index, index))
    for text in ("first-0", "runs/first-0", str(tmp_path / "runs" / "first-0"), "latest"):
        assert cli.main([command, text]) == 0
    assert [path.name for path in runs.paths] == ["first-0"] * 3 + ["second-0"]
    assert "did you mean first-0?" in refused(capsys, command, "first-1")


def test_a_protocol_is_refused_before_anything_is_loaded(runs, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a-0").mkdir(parents=True)
    config_io.save(Config(), tmp_path / "runs" / "a-0" / "config.yaml")
    assert "--protocol takes kinetix, the only one there is" in refused(
        capsys, "evaluate", "a-0", "--protocol", "atari"
    )
    refusal = refused(capsys, "evaluate", "a-0", "--protocol", "kinetix")
    assert "this run's environment is gymnax/CartPole-v1" in refusal


def test_bench_takes_options_of_its_own(runs):
    assert cli.main(["bench", "cartpole", "--textbook", "--seconds", "2", "--seed", "3", "--output=a/b.jsonl"]) == 0
    assert runs.paths[0].seed == 3
    assert runs.options == {"textbook": True, "unmonitored": False, "seconds": 2.0, "output": Path("a/b.jsonl")}


def test_report_takes_several_runs(runs, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        config_io.save(Config(), tmp_path / "runs" / name / "config.yaml")
    assert cli.main(["report", "a", "b"]) == 0
    assert [path.name for path in runs.paths[0]] == ["a", "b"]


def test_a_refusal_by_the_runner_is_told_the_same_way(runs, monkeypatch, capsys):
    from purejaxrl_scale.runner.folders import RunError

    def refuse(config, name):
        raise RunError("there is no GPU")

    monkeypatch.setattr(purejaxrl_scale.runner, "runner", SimpleNamespace(train=refuse), raising=False)
    assert cli.main(["train", "cartpole"]) == 2
    assert "there is no GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["--devices.require-gpu"], "JAX sees only CPUs"),
        (["--devices.count", "16", "--devices.logical-shards", "16"], "devices.count is 16, but JAX sees 8 device(s)"),
        (["--devices.logical-shards", "4"], "nearest legal value: 8"),
    ],
)
def test_devices_that_are_not_there_are_refused(runs, capsys, tokens, expected):
    assert cli.main(["train", "cartpole", *tokens]) == 2
    assert expected in capsys.readouterr().err
    assert runs.configs == []


def test_list_names_experiments_and_environments(capsys):
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in [*names(), "CartPole-v1", "ant", "locomotion"])


def test_help_shows_every_field_with_the_experiments_default(capsys):
    assert cli.main(["train", "kinetix_s", "--help"]) == 0
    out = capsys.readouterr().out
    for name in config_io.fields():
        assert f"--{name.replace('_', '-')}" in out
    assert "Samples in one optimiser step" in out
    assert "(default: 0.995)" in out


@pytest.mark.parametrize("command", [*cli.COMMANDS, ""])
def test_every_command_has_help(capsys, command):
    assert cli.main([command, "--help"] if command else ["--help"]) == 0
    assert "usage: purejaxrl-scale" in capsys.readouterr().out


def test_neither_help_nor_a_refusal_imports_jax(tmp_path):
    lines = [
        ["--help"],
        ["train", "--help"],
        ["train", "kinetix_s", "--help"],
        ["train", "cartpole", "--environment.name", "brax/ants", "--devices.count", "3"],
        ["train", "quickstart", "--environment.levels", "s/none"],
        ["train", "cartpole", "--scaling.num-envs", "2056", "--scaling.recipe", "hybrid"],
        ["train", "nothing"],
        ["resume", "nothing"],
        ["list"],
    ]
    script = (
        "import json, sys\n"
        "from purejaxrl_scale import Config, load_experiment, cli\n"
        "from purejaxrl_scale.named_experiments import names\n"
        "experiments = [load_experiment(name) for name in names()]\n"
        f"codes = [cli.main(line) for line in {lines!r}]\n"
        "heavy = [name for name in ('jax', 'flax', 'wandb', 'matplotlib', 'pandas') if name in sys.modules]\n"
        "print(json.dumps([codes, heavy]))\n"
    )
    # From a foreign working directory: experiments are found all the same.
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    codes, heavy = json.loads(done.stdout.splitlines()[-1])
    assert codes == [0, 0, 0, 2, 2, 2, 2, 2, 0]
    assert heavy == []


@pytest.mark.parametrize(
    ("name", "value", "threads"),
    [
        ("JAX_NUM_CPU_DEVICES", "8", "16"),
        ("XLA_FLAGS", "--xla_force_host_platform_device_count=8", "16"),
        ("XLA_FLAGS", "--xla_dump_to=/tmp/x", None),
    ],
)
def test_threads_are_added_only_for_several_cpu_devices(monkeypatch, name, value, threads):
    for variable in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "NPROC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(name, value)
    cli.main(["--version"])
    assert os.environ.get("NPROC") == threads
    monkeypatch.delenv("NPROC", raising=False)


def test_a_signal_in_the_shutdown_does_not_change_the_exit_code():
    script = (
        "import atexit, os, signal, sys; from purejaxrl_scale.cli import program; "
        "atexit.register(os.kill, os.getpid(), signal.SIGTERM); sys.argv = ['it', '--version']; sys.exit(program())"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == cli.DONE
