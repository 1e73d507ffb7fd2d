import json

import pytest

from lambdanets.errors import InputError
from lambdanets_lab.tables.measured import read
from lambdanets_lab.tables.paper import select_numbers
from lambdanets_lab.tables.rendering import to_json, to_markdown, to_text
from lambdanets_lab.tables.verdicts import MEASURED, compare

MACHINE = {"hardware": {"gpu": None, "processor": "P", "threads": 2, "cores": 2}, "versions": {"torch": "2"}}


def write_results(path, content):
    """Write a results file, with the machine and versions; return its path."""
    path.write_text(json.dumps(MACHINE | content))
    return path


def row(table, name, seconds, phase="inference", **fields):
    sizes = {"table": table, "pass": phase}
    return {"sizes": sizes, "candidate": name, "seconds": [seconds] if seconds else [], "errors": {}} | fields


def tables_results(rows):
    """Content of results.json of `lambdanets benchmark tables`."""
    options = {"batch_size": 2, "image_size": None, "dtype": "float32"}
    return {"kind": "tables", "options": options, "rows": rows}


@pytest.fixture
def measurements_file(tmp_path):
    rows = [
        row("18", "depth 50, 128px", 1.0, "training"),
        row("18", "depth 50, 160px", 2.0, "training"),
        row("4", "lambda layer", 1.0, peak_bytes=2**30),
        row("4", "global self-attention", 4.0, "training", peak_bytes=3 * 2**30),
        row("4", "lambda layer", 2.0, "training", peak_bytes=2**30),
        row("4", "axial self-attention", None, "training", skip_reason="out of memory"),
    ]
    return write_results(tmp_path / "m.json", tables_results(rows))


def test_training_steps_are_scaled_to_the_papers_batch(measurements_file):
    measured = read([measurements_file])
    assert measured.values["18", "depth 50, 128px", "train step latency"][0] == 512
    note = measured.values["18", "depth 50, 160px", "train step latency"][1]
    assert note.startswith("0.50x the speed of depth 50, 128px (paper: 0.65x)")
    assert measured.machine == "P, 2 of 2 cores, PyTorch 2, float32"


def test_training_speeds_of_table_4_are_an_additional_table(measurements_file):
    measured = read([measurements_file])
    assert measured.values["4", "lambda layer", "throughput"][0] == 2
    (additional,) = measured.additional["4"]
    assert additional.rows == (
        ("global self-attention", "0.50", "0.50", "3.00"),
        ("lambda layer", "1.00", "1.00", "1.00"),
        ("axial self-attention", "out of memory", "", ""),
    )
    comparisons = compare(select_numbers(["4"]), measured.values)
    assert {c.paper.row for c in comparisons if c.verdict == MEASURED} == {"lambda layer"}
    (additional,) = json.loads(to_json(comparisons, measured))["additional_tables"]["4"]
    assert additional["rows"][1] == ["lambda layer", "1.00", "1.00", "1.00"]
    assert "| global self-attention | 0.50 | 0.50 | 3.00 |" in to_markdown(comparisons, measured)
    assert "out of memory" in to_text(comparisons, measured)


def test_rejects_files_from_different_machines(measurements_file, tmp_path):
    other = write_results(tmp_path / "o.json", tables_results([]) | {"versions": {"torch": "3"}})
    with pytest.raises(
        InputError, match="must be from the same machine and setup, got P, 2 of 2 cores, PyTorch 2, float32, and P"
    ):
        read([measurements_file, other])


@pytest.mark.parametrize("content", [{}, {"kind": "model", "rows": []}, tables_results([{}]), tables_results(3)])
def test_rejects_files_that_are_not_results(tmp_path, content):
    path = write_results(tmp_path / "other.json", content)
    with pytest.raises(InputError, match=r"must be results\.json of lambdanets benchmark"):
        read([path])
