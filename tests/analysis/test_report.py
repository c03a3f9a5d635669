import re

import pytest
from PIL import Image

from purejaxrl_scale.analysis import report
from purejaxrl_scale.analysis.plots import training_figure
from purejaxrl_scale.analysis.runs import load_run


def test_the_figure_shows_the_return_and_the_evaluations(make_run):
    figure = training_figure([load_run(make_run(lines=200))])
    main, *panels = figure.axes
    assert main.get_ylabel() == "episode return"
    raw, smooth, stochastic, deterministic = main.lines
    assert len(raw.get_xdata()) == len(smooth.get_xdata()) == 100
    assert deterministic.get_ydata().tolist() == stochastic.get_ydata().tolist() == [700.0, 1400.0]
    assert len(panels) == 5
    assert all(panel.lines for panel in panels)


def test_where_there_are_goals_the_solve_rate_is_shown(make_run):
    main = training_figure([load_run(make_run(success=True))]).axes[0]
    assert main.get_ylabel() == "episodes solved"
    assert main.lines[-1].get_ydata().tolist() == [0.9, 0.9]


@pytest.mark.parametrize("lines", [1, 2])
def test_a_short_run_can_be_drawn(make_run, lines):
    report.write_report([load_run(make_run(lines=lines))])


def test_a_run_that_recorded_nothing_can_be_reported(make_run):
    run = make_run()
    (run / "metrics.jsonl").unlink()
    (run / "evaluations.jsonl").unlink()
    page, *_ = report.write_report([load_run(run)])
    assert "| 0 |" in page.read_text()


def test_the_page_of_one_run(make_run):
    run = load_run(make_run(success=True))
    folder = run.path / "report"
    folder.mkdir()
    (folder / "agent.gif").write_bytes(b"GIF")
    page, png, svg = report.write_report([run], film_caption="best of 4")
    text = page.read_text()
    with Image.open(png) as image:
        assert image.width > 1000
    assert svg.read_text().startswith("<?xml")
    for link in re.findall(r"\]\(([^)]+)\)", text):
        assert (folder / link).exists()
    assert "![agent](agent.gif)" in text
    assert "128,849,018,880" in text  # 60 x 2³¹ steps
    assert "| 420 | 1 | 6 | 0.9 | - | 128 | 0 |" in text


def test_several_runs_are_overlaid_in_a_folder_beside_them(make_run, capsys):
    runs = [make_run(f"a-{seed}-NOW", seed=seed) for seed in range(3)]
    assert report.main(runs) == 0
    page = runs[0].parent / "report-3-from-a-0-NOW" / "index.md"
    assert str(page) in capsys.readouterr().out.splitlines()
    assert page.read_text().startswith("# 3 runs")
    figure = training_figure([load_run(run) for run in runs])
    assert len({line.get_color() for line in figure.axes[0].lines}) == 3
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [run.name for run in runs]
