"""Replaces convolutions in a live network, in place."""

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
    """Put `make_layer(convolution)` in the place of chosen Conv2d modules of any network.

    where: a test of (module name, convolution), or names, of which any may be a pattern as a shell has them, such as
    "layer4.*.conv2"; * matches dots too. make_layer is a function of the convolution, whose channels and stride the
    layer must have; for a lambda layer:
    `lambda conv: LambdaLayer2d(conv.in_channels, conv.out_channels, stride=conv.stride[0])`.
    The new layers take over the training mode. Weights of the rest stay as they are.

    Two lambda layers in sequence in one residual block are unstable in training (Appendix B), so a choice that leaves
    a block with two is refused, those already there counted, unless allow_several_per_block. The block of a
    convolution is the smallest module around it with another convolution, linear or lambda layer in it, short of the
    model itself; Sequential, ModuleList and ModuleDict are no blocks. Whether it has a residual is not looked at.
    The appendix also advises that the last norm of each residual block start at zero: timm's ResNets do
    (`zero_init_last`), torchvision's with `zero_init_residual=True`.

    Returns the replaced names, in the model's order. Raises ValueError when a name or pattern is no Conv2d of the
    model, when nothing was chosen, when a layer has other channels or another stride than its convolution
    (`lambdanets.models.fitting` says how that is found), or when a block would hold two lambda layers; the model is
    then as it was.
    """
    everything = model.named_modules(remove_duplicate=False)  # a module may stand at several names
    convolutions = {name: module for name, module in everything if isinstance(module, nn.Conv2d)}
    check_flags(allow_several_per_block=allow_several_per_block)
    is_layer = isinstance(make_layer, type) and issubclass(make_layer, LambdaBase)
    if isinstance(make_layer, nn.Module) or is_layer or not callable(make_layer):
        raise InputError(
            f"make_layer must be a function of the convolution, got {_kind(make_layer)}; write "
            "lambda conv: LambdaLayer2d(conv.in_channels, conv.out_channels, stride=conv.stride[0])"
        )
    chosen = _choose(where, convolutions, model)
    made = {convolution: make_layer(convolution) for convolution in dict.fromkeys(convolutions[n] for n in chosen)}
    for name in chosen:
        check_fits(name, convolutions[name], made[convolutions[name]])
    layers = {name: made[convolutions[name]] for name in chosen}
    if not allow_several_per_block:
        _refuse_several_per_block(model, layers)
    for name, layer in layers.items():
        layer.train(convolutions[name].training)
        model.set_submodule(name, layer)
    return chosen


def _choose(where: Any, convolutions: dict[str, nn.Conv2d], model: nn.Module) -> list[str]:
    """Names of the convolutions that `where` means, in the model's order."""
    if not (callable(where) or isinstance(where, Iterable)) or isinstance(where, nn.Module):
        raise InputError(f"where must be a function of (name, convolution), or names; got {_kind(where)}")
    if callable(where):
        chosen = {name for name, convolution in convolutions.items() if where(name, convolution)}
    else:
        chosen = set()
        for pattern in [where] if isinstance(where, str) else where:
            if not isinstance(pattern, str):
                raise InputError(f"where must hold names, got {_kind(pattern)}")
            found = [pattern] if pattern in convolutions else fnmatch.filter(convolutions, pattern)
            if not found:
                close = nearest(pattern, convolutions, 3)
                raise InputError(f"where must name Conv2d modules of {type(model).__name__}, got {pattern!r}{close}")
            chosen.update(found)
    if not chosen:
        raise InputError(f"where chose none of the {len(convolutions)} convolutions of {type(model).__name__}")
    return [name for name in convolutions if name in chosen]


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, nn.Module) else repr(value)


def _refuse_several_per_block(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """Raise ValueError where a block would hold two lambda layers or more, once the layers are at their names."""
    modules = dict(model.named_modules(remove_duplicate=False))
    held = {name: 1 for name, module in modules.items() if isinstance(module, LambdaBase)}
    # a lambda layer counts whole, not by the projections in it
    projections = tuple(f"{name}." for name in held)
    members = [
        name
        for name, module in modules.items()
        if isinstance(module, nn.Conv2d | nn.Linear | LambdaBase) and not name.startswith(projections)
    ]
    counts = {name: sum(isinstance(module, LambdaBase) for module in layer.modules()) for name, layer in layers.items()}
    new = {name: count for name, count in counts.items() if count}
    held |= new
    for name in new:
        block = _block_of(name, modules, members)
        if block is None:
            continue
        inside = [other for other in held if other.startswith(f"{block}.")]
        if sum(held[other] for other in inside) > 1:
            raise InputError(
                f"where leaves block {block} ({type(modules[block]).__name__}) with more than one lambda layer, at "
                f"{', '.join(inside)}; two in sequence in one residual block are unstable in training (Appendix B "
                "of the paper): choose one in each block, or pass allow_several_per_block=True"
            )


def _block_of(name: str, modules: dict[str, nn.Module], members: list[str]) -> str | None:
    """The name of the smallest module around a convolution that counts as its block, or None where there is none."""
    while "." in name:
        name = name.rpartition(".")[0]
        module = modules[name]
        # a Sequential with a forward of its own, such as a residual one, is a block
        if isinstance(module, nn.ModuleList | nn.ModuleDict | LambdaBase):
            continue
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            continue
        if sum(member.startswith(f"{name}.") for member in members) > 1:
            return name
    return None
