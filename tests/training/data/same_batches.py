"""Whether loaders hand out the same."""

import torch

from lambdanets.training.data.loader import Batch


def assert_same(one: list[Batch], other: list[Batch]) -> None:
    """Two passes, of some batches, are equal in all fields and bits."""
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        for name in Batch._fields:
            mine, theirs = getattr(a, name), getattr(b, name)
            assert torch.equal(mine, theirs) if isinstance(mine, torch.Tensor) else mine == theirs, name
