import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from purejaxrl_scale.runner import records


def pair(*totals):
    return {
        "steps_high": np.array([total >> 32 for total in totals], np.uint32),
        "steps_low": np.array([total & 0xFFFFFFFF for total in totals], np.uint32),
        "outer_step": np.arange(1, len(totals) + 1, dtype=np.uint32),
        "valid": np.ones(len(totals), bool),
    }


@pytest.mark.parametrize("total", [2**31 - 1 + 2**20 * 16 + 0, 2_164_260_863, 1_048_576 * 2_048, 2**32, 10**12 + 1])
def test_steps_are_exact_beyond_31_bits(total, tmp_path):
    (row,) = records.raw_rows(pair(total))
    line = records.Recorder(1).add(row)
    records.append(tmp_path / "metrics.jsonl", [line])
    assert records.read(tmp_path / "metrics.jsonl")[0]["steps"] == total


def test_one_more_outer_step_over_the_31_bit_boundary():
    rows = list(records.raw_rows(pair(2**31 - 1, 2**31 - 1 + 2**20 * 16)))
    assert [row["steps"] for row in rows] == [2_147_483_647, 2_164_260_863]


@given(st.integers(0, 2**63 - 1))
def test_every_pair_is_its_integer(total):
    (row,) = records.raw_rows(pair(total))
    assert row["steps"] == total


def test_rows_beyond_the_chunk_are_left_out_and_members_are_told_apart():
    metrics = {name: np.stack([values, values]) for name, values in pair(32, 64, 999).items()}
    metrics["valid"] = np.array([[True, True, False], [True, False, False]])
    metrics["loss/total"] = np.array([[1, 2, np.nan], [3, np.nan, np.nan]], np.float32)
    assert [row["loss/total"] for row in records.raw_rows(metrics, 0)] == [1, 2]
    assert [row["loss/total"] for row in records.raw_rows(metrics, 1)] == [3]


def raw(step, count, total, loss=0.0):
    return {
        "steps": 32 * step,
        "outer_step": step,
        "episode/count": count,
        "episode/return_sum": total,
        "environment/resets": 2,
        "loss/value": loss,
    }


def test_an_interval_joins_sums_means_and_ratios():
    recorder = records.Recorder(log_every=3)
    assert recorder.add(raw(1, 1, 10.0, loss=1.0)) is None
    assert recorder.add(raw(2, 0, 0.0, loss=2.0)) is None
    line = recorder.add(raw(3, 3, 50.0, loss=6.0))
    assert line == {
        "steps": 96,
        "outer_step": 3,
        "episode/count": 4,
        "episode/return": 15.0,  # 60 over 4 episodes, not the mean of means
        "environment/resets": 6,
        "loss/value": 3.0,
    }
    assert recorder.flush() is None


def test_an_episode_metric_for_which_nothing_finished_is_absent():
    line = records.Recorder(1).add(raw(1, 0, 0.0))
    assert "episode/return" not in line
    assert line["episode/count"] == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null_and_the_line_is_json(tmp_path, value):
    records.append(tmp_path / "m", [records.Recorder(1).add(raw(1, 1, 1.0, loss=value))])
    text = (tmp_path / "m").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["loss/value"] is None


def test_an_unfinished_interval_survives_in_a_checkpoint():
    whole, first = records.Recorder(2), records.Recorder(2)
    first.add(raw(1, 1, 0.1, loss=0.3))
    second = records.Recorder(2, json.loads(json.dumps(first.pending)))
    whole.add(raw(1, 1, 0.1, loss=0.3))
    assert second.add(raw(2, 2, 0.7)) == whole.add(raw(2, 2, 0.7))


def test_cutting_back_removes_later_lines_and_a_torn_one(tmp_path):
    path = tmp_path / "metrics.jsonl"
    records.append(path, [{"outer_step": step, "steps": 32 * step} for step in (1, 2, 3, 4)])
    with path.open("a") as file:
        file.write('{"outer_step": 5, "st')
    assert [line["outer_step"] for line in records.read(path)] == [1, 2, 3, 4]
    assert records.cut_back(path, 2) > 0
    assert path.read_text() == '{"outer_step": 1, "steps": 32}\n{"outer_step": 2, "steps": 64}\n'
    assert records.cut_back(path, 2) == 0
    assert records.cut_back(tmp_path / "none", 2) == 0


def test_unknown_names_are_means():
    recorder = records.Recorder(2)
    recorder.add({"steps": 1, "outer_step": 1, "monitor/new": 1.0})
    assert recorder.add({"steps": 2, "outer_step": 2, "monitor/new": 4.0})["monitor/new"] == 2.5


def test_the_table_has_a_row_a_metric():
    table = records.metrics_table().splitlines()
    assert len(table) == 2 + len(records.METRICS)
    assert all(row.replace("\\|", "").count("|") == 5 for row in table)
    for name in records.METRICS:
        assert sum(f"`{name}`" in row for row in table) == 1


def test_measurements_that_come_now_and_then_are_averaged_over_those_there_are():
    """A divergence in every third outer step, a ratio that is once infinite; and nothing where there was none."""
    recorder = records.Recorder(log_every=3)
    rows = [(math.nan, 4.0), (0.3, math.inf), (math.nan, 6.0), (math.nan, math.inf), (math.nan, math.nan), (0.5, 1.0)]
    lines = []
    for step, (divergence, ratio) in enumerate(rows, start=1):
        names = {"outer/adaptive_divergence": divergence, "outer/ddr_k3": ratio}
        lines.append(recorder.add({"steps": step, "outer_step": step, **names}))
    first, second = (line for line in lines if line is not None)
    assert first["outer/adaptive_divergence"] == 0.3
    assert first["outer/ddr_k3"] == 5.0
    assert (second["outer/adaptive_divergence"], second["outer/ddr_k3"]) == (0.5, 1.0)
    alone = records.Recorder(log_every=1).add({"steps": 1, "outer_step": 1, "outer/adaptive_divergence": math.nan})
    assert alone is not None
    assert "outer/adaptive_divergence" not in alone


def test_returns_are_averaged_over_episodes():
    returns = records.Returns()
    assert returns.take() is None
    for count, total in ((2, 10.0), (0, 0.0), (1, 20.0)):
        returns.add({"episode/count": count, "episode/return_sum": total})
    assert returns.take() == 10.0
    assert returns.take() is None
    returns.add({"episode/count": 1, "episode/return_sum": math.nan})
    assert returns.take() is None
