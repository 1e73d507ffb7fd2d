"""Tables of pseudo-labels are written, read and checked."""

import contextlib

import numpy as np

from lab.pseudo.label_tables import Label, write_labels
from lambdanets.errors import InputError
from lambdanets_lab.pseudo.tables import read_table, write_table


def test_table_round_trip_keeps_rows(tmp_path):
    classes, probabilities = np.array([[3, 0], [1, 2]]), np.array([[0.75, 0.25], [0.5, 0.125]])
    write_table(tmp_path / "t.parquet", ["a", "b\udcff"], np.array([0, 2]), classes, probabilities)
    first, second = read_table(tmp_path / "t.parquet").to_pylist()
    assert first == {
        "key": "a", "position": 0, "class": 3, "confidence": 0.75, "classes": [3, 0], "probabilities": [0.75, 0.25],
    }  # fmt: skip
    assert (second["key"], second["position"], second["class"]) == ("b\\udcff", 2, 1)


def test_a_changed_byte_in_any_row_is_detected(tmp_path):
    path = write_labels(tmp_path, [[Label(f"k{i}", i % 4, 0.5) for i in range(300)]]) / "train-00000.parquet"
    content = path.read_bytes()
    expected = read_table(path)
    for offset in range(0, len(content), 97):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 0x55]) + content[offset + 1 :])
        actual = None
        with contextlib.suppress(InputError):
            actual = read_table(path)
        assert actual is None or actual.equals(expected)  # not detected only in bytes outside the rows
