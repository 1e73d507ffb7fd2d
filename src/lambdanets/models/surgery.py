"""Replace convolutions of a network in place."""

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from lambdanets.errors import InputError, nearest_hint
from lambdanets.layers import LambdaBase
from lambdanets.layers.initialization import keep_initialization

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Where = Callable[[str, Any], bool] | Iterable[str] | str


def replace_convolutions(
    model: nn.Module, make_layer: Callable[[Any], nn.Module], where: Where, *, allow_several_per_block: bool = False
) -> list[str]:
    """Replace Conv1d, Conv2d and Conv3d modules of any network in place by `make_layer(convolution)`.

    Returns the names of the replaced modules, in the order of the model. New layers are in training or eval mode like
    the convolutions they replace. Their weights are random: train a pretrained network further. Other weights are
    unchanged.

    Two lambda layers in sequence in one residual block are unstable in training (Appendix B of the paper), so by
    default a block may have only one. The block of a convolution is the smallest module that contains it and another
    convolution, linear or lambda layer. The model itself, Sequential, ModuleList and ModuleDict are not blocks. A block
    does not need a residual connection.
    The appendix also recommends zero-initializing the last norm of each residual block. timm's ResNets do so by
    default (`zero_init_last`), torchvision's with `zero_init_residual=True`.

    Args:
        model: any network.
        make_layer: function of a convolution that returns a layer with the same channels and stride, such as
            `lambda conv: LambdaLayer2d(conv.in_channels, conv.out_channels, stride=conv.stride[0])`, or LambdaLayer1d
            for a Conv1d and LambdaLayer3d for a Conv3d.
        where: function of (module name, convolution) that returns whether to replace it; or one or more module names.
            Names may be shell-style patterns such as "layer4.*.conv2", where * also matches dots.
        allow_several_per_block: allow more than one lambda layer per block; default False.

    Raises ValueError, and leaves the model unchanged, if a name or pattern matches no convolution, if none is
    selected, if a lambda layer differs from its convolution in channels, stride or dimensions, or if a block would have
    several lambda layers.
    """
    if not isinstance(model, nn.Module) or isinstance(make_layer, type | nn.Module):
        got = f"{type(model).__name__} and {make_layer!r}"
        raise InputError(f"model must be a network, and make_layer a function of a convolution; got {got}")
    modules = dict(model.named_modules(remove_duplicate=False))  # a module may have several names
    inside = tuple(f"{name}." for name, module in modules.items() if name and isinstance(module, LambdaBase))
    convolutions = {
        name: module
        for name, module in modules.items()
        if isinstance(module, Convolution) and not name.startswith(inside)  # not the projections of lambda layers
    }
    selected = _select(where, convolutions, model)
    replacements = {each: make_layer(each) for each in dict.fromkeys(convolutions[name] for name in selected)}
    layers = {name: replacements[convolutions[name]] for name in selected}
    for name, layer in layers.items():
        if not isinstance(layer, nn.Module):
            raise InputError(f"make_layer must return a layer for {name}, got {layer!r}")
        if isinstance(layer, LambdaBase):
            convolution = convolutions[name]
            expected = (convolution.in_channels, convolution.out_channels, convolution.stride)
            actual = (layer.dim, layer.dim_out, (layer.stride,) * layer.dimensions)
            if actual != expected or layer.is_token_layer:
                raise InputError(
                    f"make_layer must return a layer with the input and output channels and strides {expected} of "
                    f"{name}, got {actual}; pass conv.in_channels, conv.out_channels and stride=conv.stride[0] to "
                    f"LambdaLayer{len(convolution.stride)}d"
                )
    if not allow_several_per_block:
        _check_one_per_block(model, layers)
    for name, layer in layers.items():
        weight = convolutions[name].weight
        layer.to(weight.device, weight.dtype).train(convolutions[name].training)
        model.set_submodule(name, layer)
    keep_initialization(model)
    return selected


def _select(where: Where, convolutions: dict[str, Convolution], model: nn.Module) -> list[str]:
    """Return the names of the convolutions that `where` selects, in the order of the model."""
    if callable(where):
        selected = {name for name, convolution in convolutions.items() if where(name, convolution)}
    else:
        selected = set()
        for pattern in [where] if isinstance(where, str) else where:
            matches = [pattern] if pattern in convolutions else fnmatch.filter(convolutions, pattern)
            if not matches:
                examples = f"; its convolutions include {', '.join(list(convolutions)[-3:])}" if convolutions else ""
                names = nearest_hint(pattern, convolutions, 3) or examples
                raise InputError(f"where must name convolutions of {type(model).__name__}, got {pattern!r}{names}")
            selected.update(matches)
    if not selected:
        candidates = f"{len(convolutions)} convolutions of {type(model).__name__}"
        raise InputError(f"where must select at least one of {candidates}, got none")
    return [name for name in convolutions if name in selected]


def _check_one_per_block(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """Raise ValueError if a block would have several lambda layers after replacing modules by `layers`."""
    modules = dict(model.named_modules(remove_duplicate=False))
    new = [name for name, layer in layers.items() if any(isinstance(inner, LambdaBase) for inner in layer.modules())]
    lambdas = [name for name, module in modules.items() if isinstance(module, LambdaBase) or name in new]
    prefixes = tuple(f"{name}." for name in lambdas)  # the projections inside a lambda layer do not make it a block
    block_layers = [
        name
        for name, module in modules.items()
        if isinstance(module, Convolution | nn.Linear | LambdaBase) and not name.startswith(prefixes)
    ]
    # a Sequential subclass with its own forward, such as a residual block, is a block
    containers = (nn.Sequential.forward, nn.Module.forward)  # the latter is that of ModuleList and ModuleDict
    num_layers = Counter(name[: dot.start()] for name in block_layers for dot in re.finditer(r"\.", name))
    for name in new:
        block = name.rpartition(".")[0]
        while block and (num_layers[block] < 2 or type(modules[block]).forward in containers):
            block = block.rpartition(".")[0]
        inside = [inner for inner in lambdas if block and inner.startswith(f"{block}.")]
        if len(inside) > 1:
            raise InputError(
                f"where must select at most one lambda layer per block, got {', '.join(inside)} in {block} "
                f"({type(modules[block]).__name__}); two lambda layers in sequence in a residual block are "
                "unstable in training (Appendix B of the paper): select one per block, or pass "
                "allow_several_per_block=True"
            )
