"""Whether loaders hand out the same."""

from typing import Any

import torch


def assert_same(one: list[Any], other: list[Any]) -> None:
    """Two passes, of some batches, are equal in all fields and bits."""
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert type(a) is type(b)
        for name, mine, theirs in zip(a._fields, a, b, strict=True):
            assert _are_same(mine, theirs), name


def _are_same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, torch.Tensor):
        return isinstance(theirs, torch.Tensor) and torch.equal(mine, theirs)
    if isinstance(mine, list):
        return len(mine) == len(theirs) and all(map(_are_same, mine, theirs))
    if isinstance(mine, dict):
        return mine.keys() == theirs.keys() and all(_are_same(mine[key], theirs[key]) for key in mine)
    return bool(mine == theirs)
