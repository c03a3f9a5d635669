"""Names, options and the catalogue, held against the suites."""

import inspect
import subprocess
import sys
import types

import pytest

import purejaxrl_scale.environments as environments
from purejaxrl_scale.config import EnvironmentConfig
from purejaxrl_scale.environments import catalogue, registry
from purejaxrl_scale.environments.registry import make


def test_catalogue_is_read_without_jax():
    code = (
        "import sys; from purejaxrl_scale.environments import catalogue; "
        "catalogue.name_problem('cartpole'); sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_package_exports_make_lazily():
    assert environments.make is registry.make
    assert "make" in dir(environments)
    with pytest.raises(AttributeError, match="mkae"):
        _ = environments.mkae


def test_catalogue_lists_what_gymnax_registers():
    import gymnax

    assert list(catalogue.GYMNAX) == gymnax.registered_envs


def test_catalogue_lists_what_brax_registers():
    make("brax/fast")  # imports Brax through the adapter, which keeps it quiet
    import brax.envs

    assert set(catalogue.BRAX) == set(brax.envs._envs)


@pytest.mark.parametrize("suite", catalogue.OPTIONS)
def test_catalogue_lists_the_options_of_each_adapter(suite):
    parameters = inspect.signature(registry._adapter(suite, suite).make).parameters
    assert tuple(parameters)[1:] == catalogue.OPTIONS[suite]


def test_every_name_is_known():
    names = list(catalogue.names())
    assert len(names) == len(set(names)) == 4 + 12 + 26
    assert [name for name in names if catalogue.name_problem(name)] == []
    assert [name for name in names if catalogue.entry(name) is None] == [name for name in names if "kinetix" in name]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("cartpole", "gymnax/CartPole-v1"),
        ("CartPole-v1", "gymnax/CartPole-v1"),
        ("gymnax/cartpole", "gymnax/CartPole-v1"),
        ("gymnaxx/CartPole-v1", "gymnax/CartPole-v1"),
        ("Acrobot-v2", "gymnax/Acrobot-v1"),
        ("breakout", "gymnax/Breakout-MinAtar"),
        ("space invaders", "gymnax/SpaceInvaders-MinAtar"),
        ("brax/ants", "brax/ant"),
        ("ant", "brax/ant"),
        ("half_cheetah", "brax/halfcheetah"),
        ("Brax/HalfCheetah", "brax/halfcheetah"),
        ("walker", "brax/walker2d"),
        ("kinetix/S", "kinetix/s"),
        ("kinetix/locomoton", "kinetix/locomotion"),
    ],
)
def test_a_misspelt_name_suggests_the_right_one_first(name, nearest):
    problem = catalogue.name_problem(name)
    assert problem.startswith(f"unknown environment {name!r}: did you mean {nearest}")


@pytest.mark.parametrize("name", ["", "zzz/zzz", "brax/zzz", "kinetix", "/"])
def test_a_name_like_no_other_still_gets_help(name):
    problem = catalogue.name_problem(name)
    assert "did you mean" not in problem
    assert "brax/ant" in problem or "halfcheetah" in problem or "locomotion" in problem


def test_make_refuses_unknown_names_and_options():
    with pytest.raises(ValueError, match="did you mean brax/ant"):
        make("brax/ants")
    with pytest.raises(ValueError, match="unknown option 'episode_len' of brax/ant: did you mean episode_length"):
        make("brax/ant", episode_len=10)
    with pytest.raises(ValueError, match="unknown option 'backend' of gymnax/CartPole-v1: there are none"):
        make("gymnax/CartPole-v1", backend="spring")


def test_backend_problem():
    assert catalogue.backend_problem("brax/ant", "mjx") is None
    assert "did you mean spring" in catalogue.backend_problem("brax/ant", "Spring")
    assert catalogue.backend_problem("brax/swimmer", "generalized") is None
    assert catalogue.backend_problem("brax/swimmer", "spring").endswith("use generalized")


def test_a_broken_suite_breaks_only_itself(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax", None)
    monkeypatch.delitem(sys.modules, "purejaxrl_scale.environments.brax", raising=False)
    with pytest.raises(ImportError, match="brax/ant needs the package brax"):
        make("brax/ant")
    assert make("gymnax/CartPole-v1").name == "gymnax/CartPole-v1"


def test_make_from_config_passes_what_the_suite_has(monkeypatch):
    seen = {}
    for suite in ("kinetix", "brax"):
        fake = types.ModuleType(suite)
        fake.make = lambda name, suite=suite, **options: seen.update({suite: (name, options)})
        monkeypatch.setitem(sys.modules, f"purejaxrl_scale.environments.{suite}", fake)
    registry.make_from_config(EnvironmentConfig(name="brax/ant", backend="mjx", episode_length=7))
    assert seen["brax"] == ("ant", {"backend": "mjx", "episode_length": 7, "action_repeat": 1})
    registry.make_from_config(EnvironmentConfig(name="kinetix/m", action="continuous", num_tasks=3))
    name, options = seen["kinetix"]
    assert name == "m"
    # Observation stands at "default", which is left to the suite.
    assert options == {
        "levels": (),
        "action": "continuous",
        "dense_reward_scale": 0.2,
        "level_filter": True,
        "num_tasks": 3,
    }


def test_make_from_config_refuses_an_unknown_name():
    with pytest.raises(ValueError, match="did you mean kinetix/s"):
        registry.make_from_config(EnvironmentConfig(name="kinetix/S"))
