"""What a curriculum refuses, and what its experiments say of each scale."""

import pytest

from purejaxrl_scale import config_io
from purejaxrl_scale.arguments import choose
from purejaxrl_scale.config import problems
from purejaxrl_scale.config_io import ConfigError
from purejaxrl_scale.named_experiments import find_experiment

SFL = find_experiment("kinetix_sfl_s").config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"curriculum.buffer_size": 20_000},
            "curriculum.buffer_size must not exceed curriculum.candidates, of which it keeps the best: 20,000 is more "
            "than 12,288; the nearest legal value is 12,288",
        ),
        ({"curriculum.candidates": 12_289}, "it is 12,289; the nearest legal are 12,288 or 12,296"),
        ({"curriculum.search_batch": 5000}, "it is 5,000; the nearest legal are 4,096 or 6,144"),
        ({"environment.autoreset": "pool"}, "it is pool; leave it at its default fresh"),
        ({"environment.staggered": True}, "curriculum.new_levels is outer_step; set it to episode"),
        ({"curriculum.staleness": 0.1}, "curriculum.staleness needs curriculum.name plr"),
        (
            {"environment.name": "brax/ant", "environment.observation": "default", "environment.action": "default"},
            "curriculum.name sfl needs an environment that says whether an episode reached its goal",
        ),
        (
            {
                "curriculum.name": "plr",
                "curriculum.new_levels": "episode",
                **{f"curriculum.{name}": getattr(type(SFL.curriculum)(), name) for name in ("candidates", "every")},
            },
            "curriculum.new_levels episode goes with curriculum.name uniform and sfl",
        ),
        (
            {"curriculum.name": "none", "curriculum.new_levels": "episode"},
            "curriculum.new_levels needs curriculum.name, and would be ignored with curriculum.name none",
        ),
        ({"curriculum.share": 1.5}, "curriculum.share must be at most 1"),
    ],
)
def test_is_refused(changes, words):
    assert words in "\n".join(problems(config_io.replace(SFL, changes)))


@pytest.mark.parametrize("name", ["kinetix_sfl_s", "kinetix_sfl_m", "kinetix_sfl_l"])
@pytest.mark.parametrize(
    ("num_envs", "column"),
    [
        # Environments, then arXiv 2603.06009, table 3 (levels searched, update period, buffer) and section 5.
        (2048, (12_288, 128, 1024, 16_384, 32, 5e-5)),
        (8192, (2**18, 256, 8192, 16_384, 128, 5e-5)),
        (65_536, (2**18, 32, 8192, 16_384, 1024, 5e-5)),
        (1_048_576, (2**22, 2, 8192, 262_144, 1024, 2e-4)),
    ],
)
def test_the_papers_table(name, num_envs, column):
    config = choose([name, "--scaling.num-envs", str(num_envs)], "train").config
    options, algorithm = config.curriculum, config.algorithm
    assert config.environment.num_envs == num_envs
    assert column == (
        options.candidates,
        options.every,
        options.buffer_size,
        algorithm.minibatch_size,
        config.num_minibatches,
        algorithm.learning_rate,
    )
    assert (options.share, options.search_length, algorithm.rollout_length, algorithm.epochs) == (0.5, 512, 256, 8)


@pytest.mark.parametrize("size", ["s", "m", "l"])
def test_the_gpu_preset_is_the_papers_column_for_65536(size):
    name = f"kinetix_sfl_{size}"
    preset = choose([name, "--preset", "gpu"], "train").config
    column = choose([name, "--scaling.num-envs", "65536"], "train").config
    stored = "bfloat16" if size == "l" else "float32"
    assert preset == config_io.replace(column, {"environment.observation_storage": stored})


def test_what_is_typed_comes_after_what_belongs_to_a_scale():
    arguments = ["kinetix_sfl_s", "--scaling.num-envs", "65536", "--curriculum.every", "7"]
    config = choose(arguments, "train").config
    assert (config.curriculum.every, config.curriculum.buffer_size) == (7, 8192)


def test_a_table_that_is_none_is_refused(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from purejaxrl_scale.config import Config\nCONFIG = Config()\nSCALES = {'many': {}}\n")
    with pytest.raises(ConfigError, match="SCALES must map numbers to overrides"):
        find_experiment(str(path))
