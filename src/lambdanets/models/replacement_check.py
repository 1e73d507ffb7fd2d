"""Check that a layer can replace a convolution: input channels, output channels and stride."""

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lambdanets.errors import InputError
from lambdanets.layers import LambdaBase, LambdaLayer2d

_TEST_SIDE = 64  # side of the map for the test call, large enough to compute the stride despite padding
_TEST_BATCH = 2


def check_replacement(name: str, convolution: nn.Conv2d, layer: Any) -> None:
    """Raise ValueError unless the layer has the channels and stride of the convolution named `name`.

    Compares the attributes of lambda layers, baselines and convolutions. Other modules are called with a 64x64 map on
    the meta device; modules that raise there, such as modules for maps of a fixed size, are not checked.
    """
    layer_type = type(layer).__name__
    if not isinstance(layer, nn.Module):
        raise InputError(f"make_layer must return a module, got {layer_type}")
    if isinstance(layer, LambdaBase) and not isinstance(layer, LambdaLayer2d):
        raise InputError(f"make_layer must return a layer on maps (b, channels, height, width), got {layer_type}")
    expected = (convolution.in_channels, convolution.out_channels, convolution.stride)
    actual: tuple[int, int, tuple[int, ...]]
    if isinstance(layer, LambdaLayer2d):
        actual = (layer.dim, layer.dim_out, (layer.stride, layer.stride))
    elif isinstance(layer, nn.Conv2d):
        actual = (layer.in_channels, layer.out_channels, layer.stride)
    else:
        output = _output_on_meta(layer, convolution)
        if output is None:
            return
        if not isinstance(output, Tensor) or output.ndim != 4:
            shown = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise InputError(f"make_layer must return a layer that outputs (b, channels, height, width), got {shown}")
        rows, columns = (round(_TEST_SIDE / max(side, 1)) for side in output.shape[2:])
        actual = (convolution.in_channels, output.shape[1], (rows, columns))
    if actual != expected:
        raise InputError(
            f"make_layer must return a layer with {_format_signature(*expected)} for {name}, got {layer_type} with "
            f"{_format_signature(*actual)}; "
            "pass conv.in_channels, conv.out_channels and stride=conv.stride[0]"
        )


def _output_on_meta(layer: nn.Module, convolution: nn.Conv2d) -> Any:
    """Return the output of the layer on the meta device for an input of the convolution; None if the layer raises."""
    tensors = chain(layer.named_parameters(), layer.named_buffers())
    state = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
    size = (_TEST_BATCH, convolution.in_channels, _TEST_SIDE, _TEST_SIDE)
    x = torch.empty(size, device="meta", dtype=convolution.weight.dtype)
    try:
        with torch.no_grad():
            return functional_call(layer, state, (x,))
    except Exception:  # the layer may still fit the maps of its network
        return None


def _format_signature(channels: int, channels_out: int, stride: Any) -> str:
    shown = stride[0] if stride[0] == stride[1] else stride
    return f"{channels} channels in, {channels_out} out, stride {shown}"
