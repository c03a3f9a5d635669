import numpy as np
import pytest

from purejaxrl_scale.analysis import protocol_figure, report
from purejaxrl_scale.analysis.runs import load_run
from purejaxrl_scale.environments.kinetix_catalogue import EVALUATED, LEVELS, smallest_size
from purejaxrl_scale.runner import protocol, records


def lines(rate=0.25):
    """Those of one evaluation in which every level was solved at one rate but for the first."""
    made, everything = [], {}
    for size in EVALUATED:
        rates = {level: rate for level in LEVELS if smallest_size(level) == size}
        rates |= {f"{size}/random/{number}": rate for number in range(4)}
        rates[f"{size}/random/0"] = 1.0
        made += protocol.lines_of(rates, size, 640, 20)
        everything |= rates
    return made + protocol.lines_of(everything, "all", 640, 20)


def test_a_bar_a_level_a_bar_a_size_and_the_published_lines():
    levels, sizes, random = protocol_figure.protocol_figure("run", lines()).axes
    assert [bar.get_width() for bar in levels.patches] == [0.25] * 74
    assert [label.get_text() for label in levels.get_yticklabels()] == list(LEVELS)
    assert [round(bar.get_height(), 4) for bar in sizes.patches] == [0.25] * 4 + [0.4375] * 4
    published = sorted(line.get_segments()[0][0][1] for line in sizes.collections if len(line.get_segments()) == 1)
    assert [height for height in published if height in (0.22, 0.24, 0.33, 0.38)] == [0.22, 0.24, 0.33, 0.38]
    assert "mbeukman/Kinetix-Checkpoints" in sizes.get_legend().get_title().get_text()
    np.testing.assert_array_equal(random.lines[0].get_ydata(), [1.0, 0.25, 0.25, 0.25])


def test_half_an_evaluation_is_not_drawn():
    with pytest.raises(ValueError, match="has no random all levels"):
        protocol_figure.protocol_figure("run", lines()[:-1])


def test_a_protocol_stands_in_the_record_beside_evaluations(make_run):
    path = make_run(lines=4)
    before = load_run(path).evaluations
    records.append(path / records.EVALUATIONS_FILE, [*lines(0.5), *lines(0.25)])
    run = load_run(path)
    assert run.evaluations.equals(before)
    assert [line["solve_rate"] for line in run.protocol] == [line["solve_rate"] for line in lines(0.25)]
    assert not records.is_evaluated(path, 20)
    protocol_figure.save(run.name, run.protocol, path / "report")
    page = report.write_report([run])[0].read_text()
    assert "| 640 | hand-made | all | 0.250 ± 0.000 | 74 x 20 |" in page
    assert "![kinetix_protocol.png](kinetix_protocol.png)" in page
    assert "kinetix_sheet" not in page


def test_an_evaluation_that_was_interrupted_does_not_mix_with_the_one_before(make_run):
    path = make_run(lines=4)
    later = [line | {"outer_step": 30} for line in lines(0.75) if line["size"] == "s"]
    records.append(path / records.EVALUATIONS_FILE, [*lines(0.25), *later])
    assert load_run(path).protocol == lines(0.25)
    records.append(path / records.EVALUATIONS_FILE, lines(0.5))
    assert load_run(path).protocol == lines(0.5)
