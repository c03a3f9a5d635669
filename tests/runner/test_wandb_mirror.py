import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from purejaxrl_scale.runner import records
from purejaxrl_scale.runner.wandb_mirror import WandbMirror


@pytest.fixture
def fake(monkeypatch):
    """A wandb that keeps what it is told."""
    module = ModuleType("wandb")
    module.logged, module.axes, module.inits = [], [], []
    module.run_step = 0
    module.login = lambda prompt: False
    module.Settings = lambda **options: options

    def init(**options):
        module.inits.append(options)
        return SimpleNamespace(
            step=module.run_step,
            log=lambda line, step: module.logged.append((step, line)),
            define_metric=lambda name, step_metric=None: module.axes.append((name, step_metric)),
            finish=lambda: None,
        )

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    return module


def write(run, steps, evaluated=()):
    records.append(run / "metrics.jsonl", [{"outer_step": s, "steps": 32 * s, "loss/total": None} for s in steps])
    records.append(
        run / "evaluations.jsonl",
        [{"outer_step": s, "steps": 32 * s, "mode": "stochastic", "mean": 1.5, "n": 4} for s in evaluated],
    )


def mirror(run, mode="offline"):
    notes = []
    made = WandbMirror(run, mode, "project", {"seed": 3}, notes.append)
    return made, notes


def test_everything_recorded_is_mirrored_once_at_rising_steps(fake, tmp_path):
    write(tmp_path, [1, 2], evaluated=[2])
    made, notes = mirror(tmp_path)
    write(tmp_path, [3])
    made.close()
    assert notes == []
    assert [step for step, line in fake.logged if "outer_step" in line] == [1, 2, 3]
    assert (3, {"steps": 96, "outer_step": 3}) in fake.logged
    assert [line for _, line in fake.logged if "evaluation/steps" in line] == [
        {"evaluation/steps": 64, "evaluation/stochastic/mean": 1.5, "evaluation/stochastic/n": 4}
    ]
    steps = [step for step, _ in fake.logged]
    assert steps == sorted(steps)
    assert ("*", "steps") in fake.axes
    assert ("evaluation/*", "evaluation/steps") in fake.axes
    assert fake.inits[0]["dir"] == str(tmp_path)
    assert fake.inits[0]["mode"] == "offline"


def test_a_torn_line_waits_for_its_end(fake, tmp_path):
    write(tmp_path, [1])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"outer_step": 2')
    made, notes = mirror(tmp_path)
    made.close()
    assert [step for step, _ in fake.logged] == [1]
    assert notes == []


def test_online_goes_on_behind_what_the_server_has(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    fake.run_step = 3
    write(tmp_path, [1, 2, 3, 4])
    made, _ = mirror(tmp_path, "online")
    made.close()
    assert [step for step, _ in fake.logged] == [3, 4]
    assert fake.inits[0]["resume"] == "allow"


def test_online_without_a_login_is_offline(fake, tmp_path):
    write(tmp_path, [1])
    made, notes = mirror(tmp_path, "online")
    made.close()
    assert fake.inits[0]["mode"] == "offline"
    assert "no login" in notes[0]
    assert len(fake.logged) == 1


def test_online_without_a_network_is_offline(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    init = fake.init

    def unreachable(**options):
        if options["mode"] == "online":
            raise ConnectionError("no route")
        return init(**options)

    fake.init = unreachable
    write(tmp_path, [1])
    made, notes = mirror(tmp_path, "online")
    made.close()
    assert "cannot be reached" in notes[0]
    assert len(fake.logged) == 1


@pytest.mark.parametrize("fault", [RuntimeError("broken"), SystemExit(3)])
def test_a_failure_is_a_note(fake, tmp_path, fault):
    def broken(**_):
        raise fault

    fake.init = broken
    made, notes = mirror(tmp_path)
    made.close()
    assert "W&B stopped" in notes[0]


def test_a_mirror_that_hangs_is_left_behind(fake, tmp_path):
    release = threading.Event()
    fake.init = lambda **_: release.wait(30)
    made, notes = mirror(tmp_path)
    made.close(patience=0.05)
    release.set()
    assert "left behind" in notes[0]


def test_disabled_never_imports_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # an import would raise
    made, notes = mirror(tmp_path, "disabled")
    made.close()
    assert notes == []


def test_the_real_one_stays_in_the_run_s_folder_and_is_silent(tmp_path, capfd):
    write(tmp_path, [1, 2], evaluated=[2])
    made, notes = mirror(tmp_path)
    made.close(60)
    assert notes == []
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert capfd.readouterr() == ("", "")
