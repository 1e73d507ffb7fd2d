"""Compares the batches of two loaders."""

from typing import Any

import torch


def assert_same(one: list[Any], other: list[Any]) -> None:
    """Assert that two lists of batches are equal in all fields, bit by bit."""
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert type(a) is type(b)
        for name, value, other_value in zip(a._fields, a, b, strict=True):
            assert _are_equal(value, other_value), name


def _are_equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_are_equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_are_equal(a[key], b[key]) for key in a)
    return bool(a == b)
