"""Compares the batches of two loaders."""

from typing import Any

import torch


def assert_same(actual: list[Any], expected: list[Any]) -> None:
    """Assert that two lists of batches are bit-identical in all fields."""
    assert len(actual) == len(expected) > 0
    for actual_batch, expected_batch in zip(actual, expected, strict=True):
        assert type(actual_batch) is type(expected_batch)
        for name, left, right in zip(actual_batch._fields, actual_batch, expected_batch, strict=True):
            assert _are_equal(left, right), name


def _are_equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_are_equal, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_are_equal(left[key], right[key]) for key in left)
    return bool(left == right)
