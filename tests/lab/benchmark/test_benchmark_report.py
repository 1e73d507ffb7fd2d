"""Aggregates, tables and results.json of synthetic rows."""

import json

import pytest

from lambdanets_lab.benchmark import report
from lambdanets_lab.benchmark.aggregates import fit_exponents
from lambdanets_lab.benchmark.kinds import KINDS
from lambdanets_lab.benchmark.measurement import Row
from lambdanets_lab.benchmark.options import Layer


def rows_with_times(times, **sizes):
    return [Row(sizes, name, seconds=[seconds] * 3, errors={"output": 1e-7}) for name, seconds in times.items()]


LAYERS = [
    *rows_with_times({"lambdanets": 2.0, "convolution": 1.0}, shape="a", scope=7, **{"pass": "inference"}),
    *rows_with_times({"lambdanets": 1.0, "convolution": 8.0}, shape="b", scope=7, **{"pass": "inference"}),
    Row({"shape": "b", "scope": 7, "pass": "inference"}, "timm", skip_reason="not installed; pip install timm"),
]


def test_exponent_is_fitted_to_the_larger_half_of_sizes():
    rows = []
    for n, seconds in ((16, 1.0), (64, 1.0), (256, 2.0), (1024, 8.0)):
        rows += rows_with_times({"convolution": seconds}, setting="square map", n=n, **{"pass": "inference"})
    assert fit_exponents(rows) == {("convolution", "square map", "inference"): pytest.approx(1.0)}


def test_results_file_has_every_sample(tmp_path):
    rows = [*LAYERS, Row({"shape": "c"}, "wrong", skip_reason="wrong", errors={"output": float("inf")})]
    report.Report("layer", Layer(), "cpu", "2026-01-01", rows).write(tmp_path)
    read = json.loads((tmp_path / report.RESULTS).read_text(), parse_constant=lambda name: pytest.fail(name))
    assert [row["seconds"] for row in read["rows"]] == [row.seconds for row in rows]
    assert read["rows"][0]["median_seconds"] == 2.0
    assert read["rows"][-1]["errors"] == {"output": "inf"}
    assert {"torch", "timm", "lambdanets", "lambda-networks"} <= read["versions"].keys()
    assert {"processor", "cores", "threads", "gpu"} <= read["hardware"].keys()
    assert "commit" in read
    assert read["finished"] is False
    assert [row.candidate for row in report.read_rows(read)] == [row.candidate for row in rows]


NOISY = [
    *rows_with_times({"lambdanets": 2.0, "convolution": 1.0}, shape="a", scope=7, **{"pass": "inference"}),
    Row({"shape": "b", "scope": 7, "pass": "inference"}, "lambdanets", seconds=[1.0, 1.0, 4.0, 4.0]),
    *rows_with_times({"convolution": 8.0}, shape="b", scope=7, **{"pass": "inference"}),
]


def test_case_table_and_results_file_mark_noisy_times(tmp_path):
    table = report.case_table(KINDS["layer"], NOISY[2:], "lambdanets", batch_size=8).splitlines()
    assert "(noisy)" in table[3]
    assert "(noisy)" not in table[4]
    assert "/ lambdanets" not in table[2]  # the ratio to noisy times
    report.Report("layer", Layer(), "cpu", "2026-01-01", NOISY).write(tmp_path)
    rows = json.loads((tmp_path / report.RESULTS).read_text())["rows"]
    assert [row["noisy"] for row in rows] == [False, False, True, False]
