"""Constructor arguments of layers."""

import copy
import pickle

import pytest
import torch

from lambdanets import LambdaLayer2d


def test_an_unknown_argument_is_named():
    with pytest.raises(TypeError, match="num_heads"):
        LambdaLayer2d(64, num_heads=8)


def test_layers_can_be_copied_and_pickled():
    layer = LambdaLayer2d(8, heads=2, scope=3).eval()
    x = torch.randn(1, 8, 4, 4)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x), layer(x))
