"""Result files with former keys, from before these were renamed, can still be read."""

import json
from pathlib import Path

import pytest

from lambdanets.evidence.former_keys import with_current_keys
from lambdanets.evidence.tables.measured import read

RESULTS = Path(__file__).parents[2] / "experiments/results/xeon-2-cores"
LAYER_KEYS = {"candidate": "contestant", "skip_reason": "left_out"}


def with_former_keys(path, keys, target):
    """Copy a JSON file to `target` with the former names of its keys."""
    text = path.read_text(encoding="utf-8")
    for current, former in keys.items():
        assert f'"{current}":' in text
        text = text.replace(f'"{current}":', f'"{former}":')
    target.write_text(text, encoding="utf-8")
    return target


def test_keys_are_renamed_at_every_depth():
    content = {"rows": [{"left_out": None, "candidate": "a"}], "left_out": "left_out"}
    assert with_current_keys(content) == {
        "rows": [{"skip_reason": None, "candidate": "a"}],
        "skip_reason": "left_out",
    }


@pytest.mark.parametrize("name", ["table-4_layers_time.json", "table-4_layers_memory.json"])
def test_layer_benchmark_with_former_keys_is_read(name, tmp_path):
    committed = RESULTS / "tables" / name
    former = with_former_keys(committed, LAYER_KEYS, tmp_path / name)
    assert "skip_reason" not in json.loads(former.read_text())["rows"][0]
    assert read([former]) == read([committed])
