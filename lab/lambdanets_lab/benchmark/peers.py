"""Lambda layers of other packages with the weights of ours: their outputs must equal ours."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from lambdanets.adoption.families import HOLOCRON, LUCIDRAINS, TIMM
from lambdanets.adoption.layout import Family, scatter
from lambdanets.layers import LambdaLayer2d
from lambdanets.layers.embeddings import RelativeEmbedding
from lambdanets_lab.results import installed_version


class Skipped(Exception):  # noqa: N818
    """Raised with the reason why a candidate does not run in a case."""


@dataclass(frozen=True)
class Peer:
    """A package with a lambda layer. build: makes a layer with the sizes of ours. family: the layout of its tensors."""

    build: Callable[[LambdaLayer2d], nn.Module]
    family: Family


def _lambda_networks(layer: LambdaLayer2d) -> nn.Module:
    module = importlib.import_module("lambda_networks")
    return module.LambdaLayer(
        layer.dim, dim_k=layer.query_depth, r=_scope(layer), heads=layer.heads, dim_out=layer.dim_out
    )


def _pylocron(layer: LambdaLayer2d) -> nn.Module:
    module = importlib.import_module("holocron.nn")
    return module.LambdaLayer(layer.dim, layer.dim_out, layer.query_depth, r=_scope(layer), num_heads=layer.heads)


def _timm(layer: LambdaLayer2d) -> nn.Module:
    module = importlib.import_module("timm.layers.lambda_layer")
    return module.LambdaLayer(
        layer.dim, layer.dim_out, num_heads=layer.heads, dim_head=layer.query_depth, r=_scope(layer)
    )


# By names on PyPI. Without xformers: its position term does not mix positions, its softmax is over the depth of keys.
PEERS = {
    "lambda-networks": Peer(_lambda_networks, LUCIDRAINS),
    "timm": Peer(_timm, TIMM),
    "pylocron": Peer(_pylocron, HOLOCRON),
}


def build_peer(name: str, layer: LambdaLayer2d) -> nn.Module:
    """Build a peer's layer with the weights, dtype, device, mode and stride of our layer.

    Raises Skipped if the package is not installed or cannot be imported.
    """
    peer = PEERS[name]
    if installed_version(name) is None:
        raise Skipped(f"not installed; pip install {name}")
    try:
        theirs = peer.build(layer)
    except ImportError as error:
        raise Skipped(f"cannot be imported: {error}") from error
    weight = layer.value_projection.weight
    theirs = theirs.to(weight.device, weight.dtype).train(layer.training)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in theirs.state_dict().items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in zeros.items()}
    converted = scatter(peer.family.sources(theirs), layer.state_dict(), shapes)
    theirs.load_state_dict(zeros | converted)  # our layer has no biases
    if layer.stride == 1:
        return theirs
    # the peers do not pool; the paper averages over 3x3 positions for stride 2
    stride = layer.stride
    pool = nn.AvgPool2d(2 * stride - 1, stride, padding=stride - 1, count_include_pad=False)
    return nn.Sequential(theirs, pool)


def _scope(layer: LambdaLayer2d) -> int:
    assert isinstance(layer.embedding, RelativeEmbedding)
    return layer.embedding.scope[0]
