"""Constructor arguments of layers."""

import copy
import pickle

import torch

from lambdanets import LambdaLayer2d


def test_layers_can_be_copied_and_pickled():
    layer = LambdaLayer2d(8, heads=2, scope=3).eval()
    x = torch.randn(1, 8, 4, 4)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x), layer(x))
