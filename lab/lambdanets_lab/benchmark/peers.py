"""Lambda layers of other packages with the weights of ours: their outputs must equal ours."""

import importlib
import importlib.metadata
from dataclasses import dataclass

from torch import nn

from lambdanets.adoption.families import HOLOCRON, LUCIDRAINS, TIMM
from lambdanets.adoption.layout import Family, foreign_tensors
from lambdanets.layers import LambdaLayer2d
from lambdanets.layers.embeddings import RelativeEmbedding
from lambdanets.layers.pooling import average_pool


class Skipped(Exception):  # noqa: N818
    """Raised with the reason why a candidate does not run in a case."""


@dataclass(frozen=True)
class Peer:
    """A package with a LambdaLayer.

    arguments: names of its arguments for output channels, depth of queries, and heads.
    family: layout of its tensors.
    """

    module: str
    arguments: tuple[str, str, str]
    family: Family


# By names on PyPI. Without xformers: its position term does not mix positions, its softmax is over the depth of keys.
PEERS = {
    "lambda-networks": Peer("lambda_networks", ("dim_out", "dim_k", "heads"), LUCIDRAINS),
    "timm": Peer("timm.layers.lambda_layer", ("dim_out", "dim_head", "num_heads"), TIMM),
    "pylocron": Peer("holocron.nn", ("out_channels", "dim_k", "num_heads"), HOLOCRON),
}


def installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def build_peer(name: str, layer: LambdaLayer2d) -> nn.Module:
    """Build a peer's layer with the weights, dtype, device, mode and stride of our layer.

    Raises Skipped if the package is not installed or cannot be imported.
    """
    peer = PEERS[name]
    if installed_version(name) is None:
        raise Skipped(f"not installed; pip install {name}")
    assert isinstance(layer.embedding, RelativeEmbedding)
    sizes = dict(zip(peer.arguments, (layer.dim_out, layer.query_depth, layer.heads), strict=True))
    try:
        module = importlib.import_module(peer.module)
        theirs = module.LambdaLayer(layer.dim, r=layer.embedding.scope[0], **sizes)
    except ImportError as error:
        raise Skipped(f"cannot be imported: {error}") from error
    weight = layer.value_projection.weight
    theirs = theirs.to(weight.device, weight.dtype).train(layer.training)
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}
    theirs.load_state_dict(foreign_tensors(layer.state_dict(), peer.family, layer.heads, shapes))  # without biases
    # the peers do not pool; the paper averages over 3x3 positions for stride 2
    return theirs if layer.stride == 1 else nn.Sequential(theirs, average_pool(layer.stride, 2))
