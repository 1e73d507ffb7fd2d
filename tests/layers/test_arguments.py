"""Unknown, missing and superfluous constructor arguments of layers."""

import copy
import inspect
import pickle

import pytest
import torch

from lambdanets import LambdaLayer, LambdaLayer1d, LambdaLayer2d, LambdaLayer3d, RelativeEmbedding
from lambdanets.layers import DenseEmbedding, EdgeEmbedding
from lambdanets_lab.mixers import GlobalAttention


class Subclass(LambdaLayer2d):
    def __init__(self, width, **options):
        super().__init__(width, **options)


UNKNOWN_ARGUMENTS = {
    "PyTorch's num_heads": (
        LambdaLayer2d,
        {"num_heads": 8},
        r"LambdaLayer2d\(\) got an unexpected argument num_heads; did you mean heads\?",
    ),
    "lucidrains' dim_k": (LambdaLayer2d, {"dim_k": 16}, "argument dim_k; did you mean query_depth\\?"),
    "lucidrains' dim_u": (LambdaLayer2d, {"dim_u": 4}, "argument dim_u; did you mean intra_depth\\?"),
    "lucidrains' r": (LambdaLayer2d, {"r": 23}, "argument r; did you mean scope\\?"),
    "timm's dim_head": (LambdaLayer2d, {"dim_head": 16}, "argument dim_head; did you mean query_depth\\?"),
    "timm's feat_size": (LambdaLayer2d, {"feat_size": (7, 7)}, "argument feat_size; did you mean grid\\?"),
    "kernel_size of a convolution": (
        LambdaLayer3d,
        {"kernel_size": 3},
        r"LambdaLayer3d\(\) .* kernel_size; did you mean scope",
    ),
    "out_channels of a convolution": (
        LambdaLayer1d,
        {"out_channels": 3},
        r"LambdaLayer1d\(\) .*; did you mean dim_out",
    ),
    "British spelling": (LambdaLayer, {"normalise_keys": None}, r"LambdaLayer\(\) .*; did you mean normalize_keys\?"),
    "no similar argument": (
        LambdaLayer,
        {"bias": True},
        r"unexpected argument bias; its arguments are dim, dim_out, dim_con",
    ),
    "argument of another layer": (LambdaLayer, {"kernel_size": 3}, "kernel_size; its arguments are dim, "),
    "baseline": (GlobalAttention, {"num_heads": 8}, r"GlobalAttention\(\) .* num_heads; did you mean heads\?"),
    "subclass": (Subclass, {"num_heads": 8}, r"Subclass\(\) .* num_heads; did you mean heads\?"),
}


@pytest.mark.parametrize(("layer", "options", "message"), UNKNOWN_ARGUMENTS.values(), ids=UNKNOWN_ARGUMENTS.keys())
def test_unknown_argument_error_names_class_and_nearest_argument(layer, options, message):
    with pytest.raises(TypeError, match=message):
        layer(32, **options)


@pytest.mark.parametrize(
    ("embedding", "arguments"),
    [(RelativeEmbedding, ((3,), 16)), (DenseEmbedding, (4, 4, 16)), (EdgeEmbedding, (4, 16))],
    ids=["relative", "dense", "edge"],
)
def test_embeddings_reject_unknown_arguments(embedding, arguments):
    with pytest.raises(TypeError, match=rf"{embedding.__name__}\(\) .* num_heads; did you mean heads\?"):
        embedding(*arguments, num_heads=2)


def test_too_many_or_missing_arguments_name_the_class():
    with pytest.raises(TypeError, match=r"LambdaLayer2d\(\) takes at most 2 positional arguments, dim, dim_out, got 3"):
        LambdaLayer2d(64, 64, 3)
    with pytest.raises(TypeError, match=r"LambdaLayer2d\(\): missing a required argument: 'dim'"):
        LambdaLayer2d()
    with pytest.raises(TypeError, match=r"LambdaLayer2d\(\): multiple values for argument 'dim'"):
        LambdaLayer2d(64, dim=64)


def test_signatures_show_the_arguments():
    parameters = inspect.signature(LambdaLayer2d).parameters
    assert list(parameters)[:4] == ["dim", "dim_out", "query_depth", "heads"]
    assert parameters["scope"].default == 23
    assert "self" not in parameters


def test_layers_can_be_copied_and_pickled():
    layer = LambdaLayer2d(8, heads=2, scope=3).eval()
    x = torch.randn(1, 8, 4, 4)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x), layer(x))
