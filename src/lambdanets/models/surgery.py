"""Replace convolutions of a network in place."""

import fnmatch
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from lambdanets.errors import InputError, nearest_hint
from lambdanets.layers import LambdaBase
from lambdanets.layers.initialization import keep_initialization
from lambdanets.models.replacement_check import check_replacement
from lambdanets.ops.checks import check_flags


def replace_convolutions(
    model: nn.Module,
    make_layer: Callable[[nn.Conv2d], nn.Module],
    where: Callable[[str, nn.Conv2d], bool] | Iterable[str] | str,
    *,
    allow_several_per_block: bool = False,
) -> list[str]:
    """Replace Conv2d modules of any network in place by `make_layer(convolution)`.

    Returns the names of the replaced modules, in the order of the model. New layers are in training or eval mode like
    the convolutions they replace. Other weights are unchanged.

    Two lambda layers in sequence in one residual block are unstable in training (Appendix B of the paper), so by
    default a block may have only one. The block of a convolution is the smallest module that contains it and another
    convolution, linear or lambda layer. The model itself, Sequential, ModuleList and ModuleDict are not blocks. A block
    does not need a residual connection.
    The appendix also recommends zero-initializing the last norm of each residual block. timm's ResNets do so by
    default (`zero_init_last`), torchvision's with `zero_init_residual=True`.

    Args:
        model: any network.
        make_layer: function of a convolution that returns a layer with the same channels and stride, such as
            `lambda conv: LambdaLayer2d(conv.in_channels, conv.out_channels, stride=conv.stride[0])`.
        where: function of (module name, convolution) that returns whether to replace it; or one or more module names.
            Names may be shell-style patterns such as "layer4.*.conv2", where * also matches dots.
        allow_several_per_block: allow more than one lambda layer per block; default False.

    Raises ValueError, and leaves the model unchanged, if a name or pattern matches no Conv2d, if no convolution is
    selected, if a layer differs from its convolution in channels or stride, or if a block would have several lambda
    layers.
    """
    named_modules = model.named_modules(remove_duplicate=False)  # a module may have several names
    convolutions = {name: module for name, module in named_modules if isinstance(module, nn.Conv2d)}
    check_flags(allow_several_per_block=allow_several_per_block)
    is_layer = isinstance(make_layer, type) and issubclass(make_layer, LambdaBase)
    if isinstance(make_layer, nn.Module) or is_layer or not callable(make_layer):
        raise InputError(
            f"make_layer must be a function of the convolution, got {_describe(make_layer)}; write "
            "lambda conv: LambdaLayer2d(conv.in_channels, conv.out_channels, stride=conv.stride[0])"
        )
    selected = _select(where, convolutions, model)
    replacements = {
        convolution: make_layer(convolution) for convolution in dict.fromkeys(convolutions[name] for name in selected)
    }
    layers = {name: replacements[convolutions[name]] for name in selected}
    for name, layer in layers.items():
        check_replacement(name, convolutions[name], layer)
    if not allow_several_per_block:
        _check_one_per_block(model, layers)
    for name, layer in layers.items():
        weight = convolutions[name].weight
        if not weight.is_meta:
            if any(parameter.is_meta for parameter in layer.parameters()):
                raise InputError(f"make_layer must return a layer with weights for {name}, got one on the meta device")
            layer.to(weight.device, weight.dtype)
    for name, layer in layers.items():
        layer.train(convolutions[name].training)
        model.set_submodule(name, layer)
    keep_initialization(model)
    return selected


def _select(where: Any, convolutions: dict[str, nn.Conv2d], model: nn.Module) -> list[str]:
    """Return the names of the convolutions that `where` selects, in the order of the model."""
    if not (callable(where) or isinstance(where, Iterable)) or isinstance(where, nn.Module):
        raise InputError(f"where must be a function of (name, convolution) or names, got {_describe(where)}")
    if callable(where):
        selected = {name for name, convolution in convolutions.items() if where(name, convolution)}
    else:
        selected = set()
        for pattern in [where] if isinstance(where, str) else where:
            if not isinstance(pattern, str):
                raise InputError(f"where must contain names, got {_describe(pattern)}")
            matches = [pattern] if pattern in convolutions else fnmatch.filter(convolutions, pattern)
            if not matches:
                similar = nearest_hint(pattern, convolutions, 3)
                raise InputError(f"where must name Conv2d modules of {type(model).__name__}, got {pattern!r}{similar}")
            selected.update(matches)
    if not selected:
        raise InputError(
            f"where must select at least one of {len(convolutions)} convolutions of {type(model).__name__}, got none"
        )
    return [name for name in convolutions if name in selected]


def _describe(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, nn.Module) else repr(value)


def _check_one_per_block(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """Raise ValueError if a block would have several lambda layers after replacing modules by `layers`."""
    modules = dict(model.named_modules(remove_duplicate=False))
    lambda_counts = {name: 1 for name, module in modules.items() if isinstance(module, LambdaBase)}
    # the projections inside a lambda layer do not make it a block
    prefixes = tuple(f"{name}." for name in lambda_counts)
    block_layers = [
        name
        for name, module in modules.items()
        if isinstance(module, nn.Conv2d | nn.Linear | LambdaBase) and not name.startswith(prefixes)
    ]
    counts = {name: sum(isinstance(module, LambdaBase) for module in layer.modules()) for name, layer in layers.items()}
    new_counts = {name: count for name, count in counts.items() if count}
    lambda_counts |= new_counts
    for name in new_counts:
        block = _enclosing_block(name, modules, block_layers)
        if block is None:
            continue
        inside = [inner for inner in lambda_counts if inner.startswith(f"{block}.")]
        if sum(lambda_counts[inner] for inner in inside) > 1:
            raise InputError(
                f"where must select at most one lambda layer per block, got {', '.join(inside)} in {block} "
                f"({type(modules[block]).__name__}); two lambda layers in sequence in a residual block are unstable in "
                "training (Appendix B of the paper): select one per block, or pass allow_several_per_block=True"
            )


def _enclosing_block(name: str, modules: dict[str, nn.Module], block_layers: list[str]) -> str | None:
    """Return the name of the block of a convolution, as `replace_convolutions` defines it, or None."""
    while "." in name:
        name = name.rpartition(".")[0]
        module = modules[name]
        # a Sequential subclass with its own forward, such as a residual block, is a block
        if isinstance(module, nn.ModuleList | nn.ModuleDict | LambdaBase):
            continue
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            continue
        if sum(layer.startswith(f"{name}.") for layer in block_layers) > 1:
            return name
    return None
