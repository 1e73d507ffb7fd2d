import json
import os

import pytest

from lambdanets.errors import InputError
from lambdanets.evidence.tables.measured import read
from lambdanets.evidence.tables.printed import figures_of
from lambdanets.evidence.tables.rendering import as_json, as_markdown, as_text
from lambdanets.evidence.tables.verdicts import MEASURED, compare

WHERE = {"hardware": {"gpu": None, "processor": "P", "threads": 2, "cores": 2}, "versions": {"torch": "2"}}


def written(path, content):
    path.write_text(json.dumps(WHERE | content))
    return path


def sample(table, row, seconds, work="inference", **more):
    return {
        "table": table,
        "row": row,
        "work": work,
        "batch_size": 2,
        "image_size": 224,
        "seconds": [seconds] if seconds else [],
    } | more


@pytest.fixture
def steps(tmp_path):
    rows = [
        sample("18", "depth 50, 128px", 1.0, "training"),
        sample("18", "depth 50, 160px", 2.0, "training"),
        sample("4", "lambda layer", 1.0, peak_bytes=2**30),
        sample("4", "global self-attention", 4.0, "training", peak_bytes=3 * 2**30),
        sample("4", "lambda layer", 2.0, "training", peak_bytes=2**30),
        sample("4", "axial self-attention", None, "training", left_out="out of memory"),
    ]
    return written(tmp_path / "m.json", {"kind": "tables", "rows": rows})


def test_a_training_step_is_scaled_to_the_papers_batch(steps):
    measured = read([steps])
    assert measured.values["18", "depth 50, 128px", "train step latency"][0] == 512
    note = measured.values["18", "depth 50, 160px", "train step latency"][1]
    assert note.startswith("0.50 x depth 50, 128px, the paper's 0.65 x")
    assert measured.machine == "P, 2 of 2 cores, PyTorch 2, float32"


def test_training_of_table_4_stands_below_it_and_not_in_the_column_of_inference(steps):
    measured = read([steps])
    assert measured.values["4", "lambda layer", "throughput"][0] == 2
    (block,) = measured.blocks["4"]
    assert block.rows == (
        ("global self-attention", "0.50", "0.50", "3.00"),
        ("lambda layer", "1.00", "1.00", "1.00"),
        ("axial self-attention", "out of memory", "", ""),
    )
    lines = compare(figures_of(["4"]), measured.values)
    assert {line.printed.row for line in lines if line.verdict == MEASURED} == {"lambda layer"}
    (beside,) = json.loads(as_json(lines, measured))["measured_beside"]["4"]
    assert beside["rows"][1] == ["lambda layer", "1.00", "1.00", "1.00"]
    assert "| global self-attention | 0.50 | 0.50 | 3.00 |" in as_markdown(lines, measured)
    assert "out of memory" in as_text(lines, measured)


@pytest.fixture
def layers(tmp_path):
    sizes = {"shape": "7x7x64", "scope": 7, "pass": "inference"}
    found = {
        "lambdanets": (2e-3, None),
        "sdpa": (1e-3, None),
        "natten": (None, "not installed"),
        "convolution": (3e-3, None),
    }
    rows = [
        {"sizes": sizes, "contestant": name, "left_out": reason, "median_seconds": seconds, "peak_bytes": None}
        for name, (seconds, reason) in found.items()
    ]
    content = {"kind": "layer", "options": {"batch_size": 8, "heads": 4}, "rows": rows}
    return written(tmp_path / "layer.json", content)


def test_what_is_faster_than_the_lambda_layer_is_named(layers):
    (block,) = read([layers]).blocks["4"]
    assert block.header == (
        "map", "scope", "pass", "lambda layer", "sdpa", "natten", "convolution", "faster than the lambda layer",
    )  # fmt: skip
    assert block.rows == (("7x7x64", "7", "inference", "2.0", "1.0 (0.50 x)", "[1]", "3.0 (1.50 x)", "sdpa"),)
    assert block.notes == (
        "faster than the lambda layer: sdpa in 1 of 1 cases, convolution in 0 of 1 cases",
        "[1] natten: not installed",
    )


def test_ratios_of_table_4_are_to_the_lambda_layer_beside_the_papers(tmp_path):
    rows = [
        sample("4", "global self-attention", 4.0),
        sample("4", "axial self-attention", 3.0),
        sample("4", "lambda layer", 2.0),
    ]
    values = read([written(tmp_path / "m.json", {"kind": "tables", "rows": rows})]).values
    note = values["4", "axial self-attention", "throughput"][1]
    assert note == "0.67 x lambda layer, the paper's 0.83 x; batch 2, 224 px"
    assert values["4", "global self-attention", "throughput"][1] == "0.50 x lambda layer; batch 2, 224 px"


def test_slowdowns_need_the_network_they_are_of(tmp_path):
    rows = [sample("5", "LambdaResNet-152", None), sample("5", "EfficientNet-B7", 3.0)]
    values = read([written(tmp_path / "m.json", {"kind": "tables", "rows": rows})]).values
    assert values["5", "EfficientNet-B7", "inference throughput"] == (2 / 3, "batch 2, 224 px")
    assert not any("slowdown" in column for _, _, column in values)


def test_speeds_of_table_10_stand_below_it(tmp_path):
    rows = [sample("10", "3x3", 1.0), sample("10", "23x23", 2.0)]
    (block,) = read([written(tmp_path / "m.json", {"kind": "tables", "rows": rows})]).blocks["10"]
    assert block.rows == (("3x3", "2.00", "1.00", ""), ("23x23", "1.00", "0.50", ""))


def test_files_of_two_machines_are_refused(steps, tmp_path):
    other = written(tmp_path / "o.json", {"kind": "tables", "rows": [], "versions": {"torch": "3"}})
    with pytest.raises(InputError, match="must be of one machine; got P, 2 of 2 cores, PyTorch 2, float32, and P"):
        read([steps, other])


def test_a_benchmark_without_our_layer_has_no_ratios(layers):
    content = json.loads(layers.read_text())
    content["rows"][0] |= {"left_out": "not reached", "median_seconds": None}
    layers.write_text(json.dumps(content))
    (block,) = read([layers]).blocks["4"]
    assert block.rows == (("7x7x64", "7", "inference", "[1]", "1.0", "[2]", "3.0", ""),)


def test_several_files_are_read_together(steps, layers):
    measured = read([steps, layers])
    assert len(measured.blocks["4"]) == 2
    text = as_markdown(compare(figures_of(["4"]), measured.values), measured)
    assert text.index("Forward and backward pass") < text.index("beside attention over the same context")


@pytest.mark.parametrize(
    "content", [{}, {"kind": "model", "rows": []}, {"kind": "tables", "rows": [{}]}, {"kind": "tables", "rows": 3}]
)
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "nested.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="is no file that lambdanets tables --measure"):
        read([tmp_path / "nested.json"])
    path = written(tmp_path / "other.json", content)
    with pytest.raises(InputError, match="is no file that lambdanets tables --measure or lambdanets benchmark layer"):
        read([path])


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: it is a named pipe, not a file"):
        read([tmp_path / "pipe"])
