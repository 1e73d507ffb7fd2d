"""Lambda layers of other packages with the weights of ours: their outputs must equal ours."""

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.layers import LambdaLayer2d
from lambdanets.layers.embeddings import RelativeEmbedding


class Skipped(Exception):  # noqa: N818
    """Raised with the reason why a candidate does not run in a case."""


@dataclass(frozen=True)
class Peer:
    """A package with a lambda layer. package: its name on PyPI. build: makes a layer with our layer's weights."""

    package: str
    build: Callable[[LambdaLayer2d], nn.Module]
    table_parameter: str
    """Name of the parameter with the embeddings: a convolution weight (k, 1, r, r) with another singleton axis."""
    singleton_axis: int
    """Index of that axis."""

    def grad_table(self, layer: nn.Module) -> Tensor:
        """Return the gradient of the embeddings in the layout of our table, (r, r, k)."""
        gradient = layer.get_parameter(self.table_parameter).grad
        assert gradient is not None
        return gradient.squeeze(self.singleton_axis).squeeze(1).movedim(0, -1)


# Packages whose lambda layer differs from the paper's, with the difference.
KNOWN_INCORRECT = {
    "xformers": "its position term does not mix positions, and its softmax of the keys is over their depth"
}


def _lambda_networks(layer: LambdaLayer2d) -> nn.Module:
    module = importlib.import_module("lambda_networks")
    scope = _scope(layer)
    theirs = _move_like(
        layer, module.LambdaLayer(layer.dim, dim_k=layer.query_depth, r=scope, heads=layer.heads, dim_out=layer.dim_out)
    )
    _copy_projections(layer, theirs)
    with torch.no_grad():
        theirs.pos_conv.weight.copy_(_convolution_weight(layer).unsqueeze(2))  # (k, 1, 1, r, r)
        theirs.pos_conv.bias.zero_()
    return theirs


def _pylocron(layer: LambdaLayer2d) -> nn.Module:
    module = importlib.import_module("holocron.nn")
    scope = _scope(layer)
    theirs = _move_like(
        layer, module.LambdaLayer(layer.dim, layer.dim_out, layer.query_depth, r=scope, num_heads=layer.heads)
    )
    _copy_projections(layer, theirs)
    with torch.no_grad():
        theirs.R.copy_(_convolution_weight(layer).unsqueeze(2))
    return theirs


def _timm(layer: LambdaLayer2d) -> nn.Module:
    module = importlib.import_module("timm.layers.lambda_layer")
    scope = _scope(layer)
    if layer.dim != layer.dim_out:
        raise Skipped("needs as many output channels as input channels")
    theirs = _move_like(
        layer, module.LambdaLayer(layer.dim, num_heads=layer.heads, dim_head=layer.query_depth, r=scope)
    )
    assert layer.key_projection is not None
    projections = (layer.query_projection, layer.key_projection, layer.value_projection)
    with torch.no_grad():
        theirs.qkv.weight.copy_(torch.cat([projection.weight for projection in projections]))
        theirs.conv_lambda.weight.copy_(_convolution_weight(layer).unsqueeze(4))  # (k, 1, r, r, 1)
        theirs.conv_lambda.bias.zero_()
    theirs.norm_q.load_state_dict(layer.query_norm.state_dict())
    theirs.norm_v.load_state_dict(layer.value_norm.state_dict())
    return theirs


PEERS = {
    "lambda-networks": Peer("lambda-networks", _lambda_networks, "pos_conv.weight", 2),
    "timm": Peer("timm", _timm, "conv_lambda.weight", 4),
    "pylocron": Peer("pylocron", _pylocron, "R", 2),
}


def installed_version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def build_peer(name: str, layer: LambdaLayer2d) -> nn.Module:
    """Build a peer's layer with the weights, dtype, device, mode and stride of our layer.

    Raises Skipped if the package is not installed or cannot be imported.
    """
    peer = PEERS[name]
    if installed_version(peer.package) is None:
        raise Skipped(f"not installed; pip install {peer.package}")
    try:
        theirs = peer.build(layer)
    except ImportError as error:
        raise Skipped(f"cannot be imported: {error}") from error
    if layer.stride == 1:
        return theirs
    # the peers do not pool; the paper averages over 3x3 positions for stride 2
    stride = layer.stride
    pool = nn.AvgPool2d(2 * stride - 1, stride, padding=stride - 1, count_include_pad=False)
    return nn.Sequential(theirs, pool)


def _scope(layer: LambdaLayer2d) -> int:
    assert isinstance(layer.embedding, RelativeEmbedding)
    return layer.embedding.scope[0]


def _convolution_weight(layer: LambdaLayer2d) -> Tensor:
    """Return the table (r, r, k) as a convolution weight, (k, 1, r, r)."""
    assert isinstance(layer.embedding, RelativeEmbedding)
    return layer.embedding.table.detach().movedim(-1, 0).unsqueeze(1)


def _copy_projections(layer: LambdaLayer2d, theirs: nn.Module) -> None:
    """Copy projections and norms to a layer of lambda-networks or pylocron."""
    pairs = {
        "to_q": layer.query_projection,
        "to_k": layer.key_projection,
        "to_v": layer.value_projection,
        "norm_q": layer.query_norm,
        "norm_v": layer.value_norm,
    }
    for name, ours in pairs.items():
        assert ours is not None
        theirs.get_submodule(name).load_state_dict(ours.state_dict())


def _move_like(layer: LambdaLayer2d, theirs: Any) -> Any:
    """Move a peer's layer to the dtype, device and training mode of our layer."""
    weight = layer.value_projection.weight
    return theirs.to(weight.device, weight.dtype).train(layer.training)
