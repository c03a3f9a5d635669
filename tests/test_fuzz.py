"""Whatever is typed, or stands in a file: an answer in words, never a traceback."""

import contextlib
from typing import get_args

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from purejaxrl_scale import cli, config_io
from purejaxrl_scale.config import Config, problems
from purejaxrl_scale.header import header
from purejaxrl_scale.named_experiments import find_experiment, names
from purejaxrl_scale.outer_loop import recipes
from purejaxrl_scale.rules import RANGES
from tests.test_rules import ENVIRONMENTS

flags = st.sampled_from(
    [f"--{name}" for name in config_io.fields()]
    + [
        "--preset",
        "--memory",
        "--environment.no-staggered",
        "--no-such",
        "--",
        "-x",
        "---seed",
        "--seed=",
        "--=",
        "--environment.",
    ]
)
words = st.one_of(
    st.text(max_size=8),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["true", "False", "kinetix/s", "brax/", "/", "1e400", "1e99999999999999999999", "[", "1_0", "cpu"]),
)
lines = st.tuples(
    st.sampled_from(
        ["train", "bench", "plan", "resume", "evaluate", "render", "report", "list", "tain", "-h", "--version"]
    ),
    st.one_of(st.sampled_from(names()), words),
    st.lists(st.one_of(flags, words, st.builds("{}={}".format, flags, words)), max_size=8),
).map(lambda parts: [parts[0], parts[1], *parts[2]])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines)
def test_no_command_line_gives_a_traceback(runs, capsys, monkeypatch, tmp_path, line):
    monkeypatch.chdir(tmp_path)
    assert cli.main(line) in {0, 2, 75}


any_value = st.one_of(st.integers(-5, 3000), st.integers(-(2**63), 2**63), st.floats(allow_nan=False, width=16))


any_choice = st.fixed_dictionaries(
    {
        "environment.name": st.sampled_from(ENVIRONMENTS),
        "network.recurrent": st.booleans(),
        **{
            name: st.sampled_from(get_args(config_io.fields()[name].type))
            for name in (
                "algorithm.name",
                "algorithm.adaptive_batch.driver",
                "algorithm.adaptive_batch.minibatches",
                "scaling.recipe",
            )
        },
    }
)


@given(st.dictionaries(st.sampled_from(sorted(RANGES)), any_value), any_choice)
def test_any_numbers_are_judged_without_an_exception(numbers, choice):
    config, _ = config_io.override(Config(), {"scaling.num_envs": 4096} | numbers | choice)
    assert all(problem for problem in problems(config))
    experiment = find_experiment("cartpole")
    with contextlib.suppress(config_io.ConfigError):
        scaled = recipes.resolved(config)
        if not problems(scaled):
            assert all(label and text for label, text in header(experiment, scaled, config))


yaml_scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates())
yaml_values = st.recursive(
    yaml_scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.one_of(st.text(max_size=8), st.integers()), inner, max_size=3)
    ),
    max_leaves=6,
)
field_names = st.sampled_from(sorted(config_io.fields()))
groups = st.sampled_from(["environment", "algorithm", "devices", "changes", "nothing", ""])


@given(
    st.one_of(
        st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogateescape")),
        st.binary(max_size=200),
        st.dictionaries(st.one_of(groups, field_names, st.integers()), yaml_values, max_size=5).map(
            lambda values: yaml.safe_dump(values).encode()
        ),
    )
)
def test_any_file_is_a_config_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("config") / "config.yaml"
    path.write_bytes(content)
    with contextlib.suppress(config_io.ConfigError):
        assert isinstance(problems(config_io.load(path)), list)
