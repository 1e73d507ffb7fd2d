import json

import pytest

from lambdanets.errors import InputError
from lambdanets_lab.tables.measured import read

MACHINE = {"hardware": {"gpu": None, "processor": "P", "threads": 2, "cores": 2}, "versions": {"torch": "2"}}


def write_results(path, content):
    """Write a results file, with the machine and versions; return its path."""
    path.write_text(json.dumps(MACHINE | content))
    return path


def tables_results(rows):
    """Content of results.json of `lambdanets benchmark tables`."""
    options = {"batch_size": 2, "image_size": None, "dtype": "float32"}
    return {"kind": "tables", "options": options, "rows": rows}


def test_rejects_files_from_different_machines(tmp_path):
    first, other = (
        write_results(tmp_path / version, tables_results([]) | {"versions": {"torch": version}}) for version in "23"
    )
    with pytest.raises(
        InputError, match="must be from the same machine and setup, got P, 2 of 2 cores, PyTorch 2, float32, and P"
    ):
        read([first, other])


@pytest.mark.parametrize("content", [{}, {"kind": "model", "rows": []}, tables_results([{}]), tables_results(3)])
def test_rejects_files_that_are_not_results(tmp_path, content):
    path = write_results(tmp_path / "other.json", content)
    with pytest.raises(InputError, match=r"must be results\.json of lambdanets benchmark"):
        read([path])
