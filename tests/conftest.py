"""Strict JAX for every test: eight CPU devices, no silent rank promotion, warnings are errors (see pyproject.toml)."""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# With fewer threads than devices, an unblocked data-parallel loop deadlocks on a machine of two cores.
os.environ["NPROC"] = "16"

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update(
    "jax_compilation_cache_dir",
    os.environ.get("JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), "purejaxrl_scale_test_cache")),
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@pytest.fixture
def key():
    """A fresh typed key."""
    return jax.random.key(0)


class Runs:
    """Stands in for the runner and keeps what it was asked to do."""

    def __init__(self):
        self.configs: list = []
        self.names: list[str] = []
        self.paths: list = []

    def train(self, config, name):
        self.configs.append(config)
        self.names.append(name)
        return 75

    def check(self, config):
        return "little"

    def main(self, path, *rest, **options):
        self.paths.append(path)
        self.options = options
        return 0

    resume = main


@pytest.fixture
def runs(monkeypatch):
    """Nothing is trained, planned, measured or drawn."""
    import purejaxrl_scale.analysis
    import purejaxrl_scale.runner

    stand_in = Runs()
    for package, modules in {
        purejaxrl_scale.runner: ["runner", "evaluation", "video"],
        purejaxrl_scale.analysis: ["report"],
        purejaxrl_scale: ["bench", "plan"],
    }.items():
        for module in modules:
            monkeypatch.setattr(package, module, stand_in, raising=False)
    return stand_in
