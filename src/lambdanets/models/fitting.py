"""Whether a layer fits in the place of a convolution: channels in, channels out, stride."""

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lambdanets.errors import InputError
from lambdanets.layers import LambdaBase, LambdaLayer2d
from lambdanets.layers.baselines.mixer import Mixer

_SIDE = 64  # of the map that a layer is tried on: large enough that padding does not hide the stride
_BATCH = 2


def check_fits(name: str, convolution: nn.Conv2d, layer: Any) -> None:
    """Raise ValueError unless the layer made for the convolution at a name has its channels and stride.

    Read from attributes of lambda layers, of the baselines and of convolutions. Any other module is called on a map
    of 64x64 on the meta device; one that raises there, such as a module for a fixed size, is taken as it is.
    """
    kind = type(layer).__name__
    if not isinstance(layer, nn.Module):
        raise InputError(f"make_layer must return a module, got {kind}")
    if isinstance(layer, LambdaBase) and not isinstance(layer, LambdaLayer2d):
        raise InputError(f"make_layer must return a layer on maps (b, channels, height, width), got {kind}")
    expected = (convolution.in_channels, convolution.out_channels, convolution.stride)
    came: tuple[int, int, tuple[int, ...]]
    if isinstance(layer, LambdaLayer2d | Mixer):
        came = (layer.dim, layer.dim_out, (layer.stride, layer.stride))
    elif isinstance(layer, nn.Conv2d):
        came = (layer.in_channels, layer.out_channels, layer.stride)
    else:
        output = _output_on_meta(layer, convolution)
        if output is None:
            return
        if not isinstance(output, Tensor) or output.ndim != 4:
            shown = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise InputError(f"make_layer must return a layer with maps (b, channels, height, width) out, got {shown}")
        rows, columns = (round(_SIDE / max(side, 1)) for side in output.shape[2:])
        came = (convolution.in_channels, output.shape[1], (rows, columns))
    if came != expected:
        raise InputError(
            f"make_layer must return a layer with {_words(*expected)} for {name}, got {kind} with {_words(*came)}; "
            "pass on conv.in_channels, conv.out_channels and stride=conv.stride[0]"
        )


def _output_on_meta(layer: nn.Module, convolution: nn.Conv2d) -> Any:
    """What the layer returns for a map that the convolution takes, without data; None where it raises."""
    tensors = chain(layer.named_parameters(), layer.named_buffers())
    state = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
    size = (_BATCH, convolution.in_channels, _SIDE, _SIDE)
    x = torch.empty(size, device="meta", dtype=convolution.weight.dtype)
    try:
        with torch.no_grad():
            return functional_call(layer, state, (x,))
    except Exception:  # anybody's module: what it raises says nothing about whether it fits
        return None


def _words(channels: int, channels_out: int, stride: Any) -> str:
    shown = stride[0] if stride[0] == stride[1] else stride
    return f"{channels} channels in, {channels_out} out, stride {shown}"
