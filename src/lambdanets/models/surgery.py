"""Replaces convolutions in a live network, in place."""

from collections.abc import Callable, Iterable

from torch import nn

from lambdanets.errors import InputError


def replace_convolutions(
    model: nn.Module,
    make_layer: Callable[[nn.Conv2d], nn.Module],
    where: Callable[[str, nn.Conv2d], bool] | Iterable[str],
) -> list[str]:
    """Put `make_layer(convolution)` in the place of chosen Conv2d modules of any network.

    where: a test of (module name, convolution), or the names themselves. make_layer is given the convolution, so that
    it can take over channels and stride; for a lambda layer:
    `lambda conv: LambdaLayer2d(conv.in_channels, conv.out_channels, stride=conv.stride[0])`.
    The new layers take over the training mode. Weights of the rest stay as they are.

    Returns the replaced names, in the model's order. Raises ValueError when a name is no Conv2d of the model, or when
    nothing was chosen.
    """
    convolutions = {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    if callable(where):
        chosen = [name for name, convolution in convolutions.items() if where(name, convolution)]
    else:
        names = set(where)
        unknown = sorted(names - convolutions.keys())
        if unknown:
            raise InputError(f"where names {', '.join(unknown)}, which is no Conv2d of {type(model).__name__}")
        chosen = [name for name in convolutions if name in names]
    if not chosen:
        raise InputError(f"where chose none of the {len(convolutions)} convolutions of {type(model).__name__}")
    for name in chosen:
        layer = make_layer(convolutions[name])
        layer.train(convolutions[name].training)
        model.set_submodule(name, layer)
    return chosen
