"""The layers of the package: imports point one way, and nothing under `train` knows files, W&B or the terminal."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "purejaxrl_scale"

# From the bottom up. A module may import its own layer and those below.
LAYERS = [
    {"changes", "config", "config_io", "run_config", "suggest"},
    {
        "advantages",
        "batch_rules",
        "compaction",
        "curriculum_rules",
        "counters",
        "devices",
        "environments",
        "hyperparameters",
        "minibatches",
        "named_experiments",
        "networks",
        "outer_loop_rules",
        "ranges",
        "rules",
        "schedules",
    },
    {"algorithms", "outer_loop", "rollout", "state"},
    {"train"},
    {
        "analysis",
        "arguments",
        "bench",
        "bench_devices",
        "flags",
        "launchers",
        "plan",
        "runner",
        "sweep",
        "sweep_runner",
        "sweep_file",
    },
    {"__main__", "cli", "doctor", "header", "listing", "streams", "sweep_command"},
]
HEIGHT = {module: height for height, layer in enumerate(LAYERS) for module in layer}
# `problems` is called on a config, so its door stands in config.py; the rules are imported when it is called.
UPWARD = {("config", "rules")}
OUTSIDE = {"wandb", "rich", "tyro", "orbax", "matplotlib", "pandas", "yaml", "imageio"}


def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports, at its top or within its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from purejaxrl_scale import counters` imports a module by its last part.
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files() -> list[tuple[str, Path]]:
    paths = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]
    return [(path.relative_to(PACKAGE).with_suffix("").parts[0], path) for path in paths]


def test_every_module_has_a_layer():
    assert {module for module, _ in files()} <= set(HEIGHT), "name the layer of a new module in this file"


def test_imports_point_one_way():
    for module, path in files():
        for name in imports(path):
            parts = name.split(".")
            if (
                parts[0] == "purejaxrl_scale"
                and len(parts) > 1
                and parts[1] in HEIGHT
                and (module, parts[1]) not in UPWARD
            ):
                assert HEIGHT[parts[1]] <= HEIGHT[module], f"{path.relative_to(PACKAGE)} imports {name}"


def test_nothing_under_train_knows_the_outside():
    for module, path in files():
        if HEIGHT[module] <= HEIGHT["train"] and module != "config_io":
            outside = {name for name in imports(path) if name.split(".")[0] in OUTSIDE}
            assert not outside, f"{path.relative_to(PACKAGE)} imports {outside}"


def test_experiments_import_only_the_config():
    """So that they are listed and refused without JAX. Figure scripts set no CONFIG and are programs of their own."""
    for path in (PACKAGE.parent / "experiments").glob("*.py"):
        if any(line.startswith("CONFIG") for line in path.read_text().splitlines()):
            for name in imports(path):
                assert name.startswith("purejaxrl_scale.config."), f"{path} imports {name}"


def test_the_top_level_is_small():
    entries = {path.name for path in PACKAGE.parent.iterdir() if not path.name.startswith(".")}
    design = {"pyproject.toml", "README.md", "LICENSE", "CONTRIBUTING.md"}
    design |= {"purejaxrl_scale", "experiments", "sweeps", "notebooks", "tests"}
    made_by_running = {"uv.lock", "runs", "wandb", "dist", "build"}
    assert entries - made_by_running <= design


def test_no_file_is_too_long():
    for _, path in files():
        assert len(path.read_text().splitlines()) <= 400, path
