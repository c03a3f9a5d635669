"""README says what the code says."""

import re
from pathlib import Path

from purejaxrl_scale import named_experiments
from purejaxrl_scale.runner.records import metrics_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_metrics_table_is_the_records():
    assert metrics_table().strip() in README


def test_every_experiment_is_listed():
    for name in named_experiments.names():
        assert f"`{name}`" in README, name


def test_pictures_and_links_exist():
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", README) if not target.startswith("http")]
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target
