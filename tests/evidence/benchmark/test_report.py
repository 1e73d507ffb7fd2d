"""Figures, tables and results.json, from rows made by hand."""

import json

import pytest

from lambdanets.evidence.benchmark import report
from lambdanets.evidence.benchmark.options import Layer
from lambdanets.evidence.benchmark.race import Row


def rows_of(times, **sizes):
    return [Row(sizes, name, seconds=[seconds] * 3, errors={"output": 1e-7}) for name, seconds in times.items()]


LAYERS = [
    *rows_of({"lambdanets": 2.0, "convolution": 1.0}, shape="a", scope=7, **{"pass": "inference"}),
    *rows_of({"lambdanets": 1.0, "convolution": 8.0}, shape="b", scope=7, **{"pass": "inference"}),
    Row({"shape": "b", "scope": 7, "pass": "inference"}, "timm", left_out="not installed; pip install timm"),
]


def test_a_layer_is_compared_by_the_geometric_mean_over_its_shapes():
    (figure,) = report.figures("layer", LAYERS)
    assert figure["contestant"] == "convolution"
    assert figure["shapes"] == 2
    assert figure["geometric_mean_over_ours"] == pytest.approx(2.0)


def test_memory_is_compared_in_bytes():
    rows = [Row({"shape": "a", "scope": 7, "pass": "x"}, n, peak_bytes=b) for n, b in (("lambdanets", 2), ("timm", 6))]
    (figure,) = report.figures("memory", rows)
    assert figure["geometric_mean_over_ours"] == pytest.approx(3.0)


def test_a_network_is_compared_with_plain_resnet50_by_throughput():
    rows = rows_of({"resnet50": 1.0, "lambdanets CCCL": 4.0}, image_size=32, **{"pass": "training"})
    found = {
        figure["contestant"]: figure["throughput_relative_to_resnet50"] for figure in report.figures("model", rows)
    }
    assert found == {"resnet50": 1.0, "lambdanets CCCL": 0.25}


def test_the_exponent_is_that_of_the_larger_half_of_the_sizes():
    rows = []
    for n, seconds in ((16, 1.0), (64, 1.0), (256, 2.0), (1024, 8.0)):
        rows += rows_of({"convolution": seconds}, setting="square map", n=n, **{"pass": "inference"})
    (figure,) = report.figures("scaling", rows)
    assert (figure["from_n"], figure["to_n"]) == (256, 1024)
    assert figure["exponent_of_time"] == pytest.approx(1.0)


def test_a_table_has_a_line_for_every_contestant_and_the_reason_of_those_left_out():
    table = report.case_table("layer", LAYERS[2:], batch_size=8).splitlines()
    assert table[1] == "shape b, scope 7, pass inference"
    assert [line.split()[0] for line in table[2:]] == ["contestant", "lambdanets", "convolution", "timm"]
    assert "8000.00" in table[4]
    assert table[5].endswith("left out: not installed; pip install timm")


def test_a_table_of_none_but_left_out_contestants_is_one():
    table = report.case_table("memory", LAYERS[-1:], batch_size=8)
    assert "left out: not installed" in table


def test_results_can_be_read_back_with_every_sample(tmp_path):
    rows = [*LAYERS, Row({"shape": "c"}, "wrong", left_out="wrong", errors={"output": float("inf")})]
    made = report.Report("layer", Layer(), "cpu", "2026-01-01", rows)
    made.write(tmp_path)
    read = json.loads((tmp_path / report.RESULTS).read_text(), parse_constant=lambda name: pytest.fail(name))
    assert [row["seconds"] for row in read["rows"]] == [row.seconds for row in rows]
    assert read["rows"][0]["median_seconds"] == 2.0
    assert read["rows"][-1]["errors"] == {"output": "inf"}
    assert {"torch", "timm", "lambdanets", "lambda-networks"} <= read["versions"].keys()
    assert {"processor", "cores", "threads", "gpu"} <= read["hardware"].keys()
    assert "commit" in read
    assert read["finished"] is False


NOISY = [
    *rows_of({"lambdanets": 2.0, "convolution": 1.0}, shape="a", scope=7, **{"pass": "inference"}),
    Row({"shape": "b", "scope": 7, "pass": "inference"}, "lambdanets", seconds=[1.0, 1.0, 4.0, 4.0]),
    *rows_of({"convolution": 8.0}, shape="b", scope=7, **{"pass": "inference"}),
]


def test_nothing_is_concluded_from_noisy_times():
    (figure,) = report.figures("layer", NOISY)
    assert (figure["shapes"], figure["noisy"]) == (1, 1)
    assert figure["geometric_mean_over_ours"] == pytest.approx(0.5)
    (figure,) = report.figures("layer", NOISY[2:])
    assert figure["geometric_mean_over_ours"] is None
    assert "noisy" in report.figures_table([figure]).splitlines()[-1]


def test_a_table_and_the_results_mark_noisy_times(tmp_path):
    table = report.case_table("layer", NOISY[2:], batch_size=8).splitlines()
    assert "(noisy)" in table[3]
    assert "(noisy)" not in table[4]
    assert table[4].split()[-2] == "noisy"  # its ratio to ours
    report.Report("layer", Layer(), "cpu", "2026-01-01", NOISY).write(tmp_path)
    rows = json.loads((tmp_path / report.RESULTS).read_text())["rows"]
    assert [row["noisy"] for row in rows] == [False, False, True, False]
    assert report.noise(NOISY).startswith("noisy: 1 of 4 measurements")
    assert report.noise(LAYERS) == ""


def test_a_network_or_an_exponent_of_noisy_times_has_no_figure():
    rows = rows_of({"resnet50": 1.0}, image_size=32, **{"pass": "training"})
    rows += [Row(rows[0].sizes, "lambdanets CCCL", seconds=[1.0, 1.0, 4.0, 4.0])]
    found = {figure["contestant"]: figure for figure in report.figures("model", rows)}
    assert found["resnet50"]["throughput_relative_to_resnet50"] == 1.0
    assert found["lambdanets CCCL"]["throughput_relative_to_resnet50"] is None
    points = [Row({"setting": "map", "pass": "x", "n": n}, "a", seconds=[1.0, 1.0, 4.0]) for n in (16, 64)]
    assert report.figures("scaling", points) == []
