"""Replaces convolutions of a network in place."""

import fnmatch
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from lambdanets.errors import InputError, nearest
from lambdanets.layers import LambdaBase
from lambdanets.models.fitting import check_fits
from lambdanets.ops.checks import check_flags


def replace_convolutions(
    model: nn.Module,
    make_layer: Callable[[nn.Conv2d], nn.Module],
    where: Callable[[str, nn.Conv2d], bool] | Iterable[str] | str,
    *,
    allow_several_per_block: bool = False,
) -> list[str]:
    """Replace chosen Conv2d modules of any network by `make_layer(convolution)`.

    where: a predicate of (module name, convolution), or names, which may be shell-style patterns such as
    "layer4.*.conv2"; * matches dots too. make_layer: a function of the convolution that returns a layer with the same
    channels and stride; for a lambda layer
    `lambda conv: LambdaLayer2d(conv.in_channels, conv.out_channels, stride=conv.stride[0])`.
    New layers take over the training mode; other weights are unchanged.

    Two lambda layers in sequence in one residual block are unstable in training (Appendix B), so more than one lambda
    layer in a block, existing ones included, raises an error unless allow_several_per_block. The block of a convolution
    is the smallest module around it, except the model itself, that contains another convolution, linear or lambda
    layer; Sequential, ModuleList and ModuleDict do not count, and a residual connection is not required.
    The appendix also recommends to zero-initialize the last norm of each residual block: timm's ResNets do
    (`zero_init_last`), torchvision's with `zero_init_residual=True`.

    Returns the replaced names, in the model's order. Raises ValueError if a name or pattern matches no Conv2d of the
    model, if none is chosen, if a layer differs from its convolution in channels or stride (see
    `lambdanets.models.fitting`), or if a block would have two lambda layers; the model is then unchanged.
    """
    named_modules = model.named_modules(remove_duplicate=False)  # a module may have several names
    convolutions = {name: module for name, module in named_modules if isinstance(module, nn.Conv2d)}
    check_flags(allow_several_per_block=allow_several_per_block)
    is_layer = isinstance(make_layer, type) and issubclass(make_layer, LambdaBase)
    if isinstance(make_layer, nn.Module) or is_layer or not callable(make_layer):
        raise InputError(
            f"make_layer must be a function of the convolution, got {_kind(make_layer)}; write "
            "lambda conv: LambdaLayer2d(conv.in_channels, conv.out_channels, stride=conv.stride[0])"
        )
    chosen = _choose(where, convolutions, model)
    new = {convolution: make_layer(convolution) for convolution in dict.fromkeys(convolutions[n] for n in chosen)}
    for name in chosen:
        check_fits(name, convolutions[name], new[convolutions[name]])
    layers = {name: new[convolutions[name]] for name in chosen}
    if not allow_several_per_block:
        _check_one_per_block(model, layers)
    for name, layer in layers.items():
        layer.train(convolutions[name].training)
        model.set_submodule(name, layer)
    return chosen


def _choose(where: Any, convolutions: dict[str, nn.Conv2d], model: nn.Module) -> list[str]:
    """Names of the convolutions that `where` selects, in the model's order."""
    if not (callable(where) or isinstance(where, Iterable)) or isinstance(where, nn.Module):
        raise InputError(f"where must be a function of (name, convolution), or names; got {_kind(where)}")
    if callable(where):
        chosen = {name for name, convolution in convolutions.items() if where(name, convolution)}
    else:
        chosen = set()
        for pattern in [where] if isinstance(where, str) else where:
            if not isinstance(pattern, str):
                raise InputError(f"where must contain names, got {_kind(pattern)}")
            found = [pattern] if pattern in convolutions else fnmatch.filter(convolutions, pattern)
            if not found:
                close = nearest(pattern, convolutions, 3)
                raise InputError(f"where must name Conv2d modules of {type(model).__name__}, got {pattern!r}{close}")
            chosen.update(found)
    if not chosen:
        raise InputError(f"where must select some of the {len(convolutions)} convolutions of {type(model).__name__}")
    return [name for name in convolutions if name in chosen]


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, nn.Module) else repr(value)


def _check_one_per_block(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """Raise ValueError if a block would have more than one lambda layer after replacing modules by `layers`."""
    modules = dict(model.named_modules(remove_duplicate=False))
    counts_by_name = {name: 1 for name, module in modules.items() if isinstance(module, LambdaBase)}
    # the projections inside a lambda layer do not count
    projections = tuple(f"{name}." for name in counts_by_name)
    members = [
        name
        for name, module in modules.items()
        if isinstance(module, nn.Conv2d | nn.Linear | LambdaBase) and not name.startswith(projections)
    ]
    counts = {name: sum(isinstance(module, LambdaBase) for module in layer.modules()) for name, layer in layers.items()}
    new = {name: count for name, count in counts.items() if count}
    counts_by_name |= new
    for name in new:
        block = _block_of(name, modules, members)
        if block is None:
            continue
        inside = [other for other in counts_by_name if other.startswith(f"{block}.")]
        if sum(counts_by_name[other] for other in inside) > 1:
            raise InputError(
                f"where must select at most one lambda layer per block, got {', '.join(inside)} in {block} "
                f"({type(modules[block]).__name__}); two in sequence in a residual block are unstable in training "
                "(Appendix B of the paper): choose one per block, or pass allow_several_per_block=True"
            )


def _block_of(name: str, modules: dict[str, nn.Module], members: list[str]) -> str | None:
    """The name of the block of a convolution, see `replace_convolutions`; None if there is none."""
    while "." in name:
        name = name.rpartition(".")[0]
        module = modules[name]
        # a Sequential subclass with its own forward, such as a residual block, counts
        if isinstance(module, nn.ModuleList | nn.ModuleDict | LambdaBase):
            continue
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            continue
        if sum(member.startswith(f"{name}.") for member in members) > 1:
            return name
    return None
