"""Replaces convolutions in a live network, in place."""

from collections.abc import Callable, Iterable

from torch import nn

from lambdanets.errors import InputError
from lambdanets.layers import LambdaBase
from lambdanets.ops.checks import check_flags


def replace_convolutions(
    model: nn.Module,
    make_layer: Callable[[nn.Conv2d], nn.Module],
    where: Callable[[str, nn.Conv2d], bool] | Iterable[str],
    *,
    allow_several_per_block: bool = False,
) -> list[str]:
    """Put `make_layer(convolution)` in the place of chosen Conv2d modules of any network.

    where: a test of (module name, convolution), or the names themselves. make_layer is given the convolution, so that
    it can take over channels and stride; for a lambda layer:
    `lambda conv: LambdaLayer2d(conv.in_channels, conv.out_channels, stride=conv.stride[0])`.
    The new layers take over the training mode. Weights of the rest stay as they are.

    Two lambda layers in sequence in one residual block are unstable in training (Appendix B), so a choice that leaves
    a block with two is refused, those already there counted, unless allow_several_per_block. The block of a
    convolution is the smallest module around it with another convolution, linear or lambda layer in it, short of the
    model itself; Sequential, ModuleList and ModuleDict are no blocks. Whether it has a residual is not looked at.
    The appendix also advises that the last norm of each residual block start at zero: timm's ResNets do
    (`zero_init_last`), torchvision's with `zero_init_residual=True`.

    Returns the replaced names, in the model's order. Raises ValueError when a name is no Conv2d of the model, when
    nothing was chosen, or when a block would hold two lambda layers; the model is then as it was.
    """
    everything = model.named_modules(remove_duplicate=False)  # a module may stand at several names
    convolutions = {name: module for name, module in everything if isinstance(module, nn.Conv2d)}
    check_flags(allow_several_per_block=allow_several_per_block)
    if isinstance(where, str) or not (callable(where) or isinstance(where, Iterable)):
        raise InputError(f"where must be a function of (name, convolution), or a list of names; got {where!r}")
    if callable(where):
        chosen = [name for name, convolution in convolutions.items() if where(name, convolution)]
    else:
        names = set(where)
        unknown = sorted(names - convolutions.keys(), key=str)
        if unknown:
            raise InputError(f"where names {', '.join(map(str, unknown))}, no Conv2d of {type(model).__name__}")
        chosen = [name for name in convolutions if name in names]
    if not chosen:
        raise InputError(f"where chose none of the {len(convolutions)} convolutions of {type(model).__name__}")
    made = {convolution: make_layer(convolution) for convolution in dict.fromkeys(convolutions[n] for n in chosen)}
    for layer in made.values():
        if not isinstance(layer, nn.Module):
            raise InputError(f"make_layer must return a module, got {type(layer).__name__}")
    layers = {name: made[convolutions[name]] for name in chosen}
    if not allow_several_per_block:
        _refuse_several_per_block(model, layers)
    for name, layer in layers.items():
        layer.train(convolutions[name].training)
        model.set_submodule(name, layer)
    return chosen


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
