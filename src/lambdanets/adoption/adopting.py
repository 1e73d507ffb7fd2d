"""Replaces the lambda layers of other packages in a network, and returns their weights."""

from collections import Counter

from torch import Tensor, nn

from lambdanets.adoption.families import FAMILIES
from lambdanets.adoption.layout import Family, Origin, convert, convert_back
from lambdanets.adoption.trial import check_conversion
from lambdanets.errors import InputError, one_line
from lambdanets.layers.initialization import keep_initialization
from lambdanets.layers.lambda_layer import GridLambdaLayer


def adopt(model: nn.Module) -> dict[str, str]:
    """Replace the lambda layers of other packages in a network by layers of this package, in place.

    The outputs stay the same, up to rounding, in training and in evaluation. Layers are recognized by their attributes,
    also in copied files: those of timm, lucidrains' lambda-networks, Holocron, d-li14 and leaderj1001
    (docs/adoption.md). Before any layer is replaced, each replacement is compared with its original on random inputs in
    float64, except on the meta device. Weights, norms, training mode, dtype, device and `requires_grad` are kept, and
    shared modules stay shared. Parameters are new: create the optimizer, and wrap the network in
    DistributedDataParallel, afterwards. `foreign_state_dict` converts the weights back.

    Returns the family of each replaced layer, keyed by the layer's name in the network. Raises ValueError if there are
    no such layers, or if one cannot be replaced, with its name and the reason; the network is then unchanged.
    """
    layers = foreign_layers(model)
    if not layers:
        names = ", ".join(dict.fromkeys(family.name for family in FAMILIES))
        raise InputError(f"model must contain lambda layers of {names}, got a {type(model).__name__} with none")
    if "" in layers:
        raise InputError(
            f"model must be a network, got a lambda layer, {type(model).__name__}, which cannot be "
            "replaced in place; pass nn.Sequential(layer)"
        )
    places = Counter(layers.values())
    uses = Counter(parameter for _, parameter in model.named_parameters(remove_duplicate=False))
    replacements: dict[nn.Module, tuple[str, GridLambdaLayer]] = {}
    for name, layer in layers.items():
        if layer not in replacements:
            try:
                if shared := [name for name, parameter in layer.named_parameters() if uses[parameter] > places[layer]]:
                    raise InputError(f"its {shared[0]} is also a parameter of another module")
                replacements[layer] = _replacement(layer)
            except InputError as error:
                kind = f"a layer of {_families(layer)[0].name}"
                raise InputError(f"{name}, {kind}, cannot be replaced: {error}") from error
    for name, layer in layers.items():
        model.set_submodule(name, replacements[layer][1])
    keep_initialization(model)
    return {name: replacements[layer][0] for name, layer in layers.items()}


def foreign_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The lambda layers of other packages in a network, by name."""
    return {name: module for name, module in model.named_modules(remove_duplicate=False) if _families(module)}


def adopted_layers(model: nn.Module) -> dict[str, GridLambdaLayer]:
    """The layers that `adopt` put into a network, by name."""
    return {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, GridLambdaLayer) and isinstance(module.origin, Origin)
    }


def foreign_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a network that `adopt` changed, with the keys and shapes of the original.

    Loads with strict=True into the original network, which then gives the same outputs, also after
    training. Tensors of adopted layers are copies, the others are those of `model.state_dict()`.

    Raises ValueError if the network has no adopted layer, or if one was changed since, for example
    by resizing its table.
    """
    foreign: dict[str, dict[str, Tensor]] = {}  # state dicts of the adopted layers, by prefix
    for name, layer in adopted_layers(model).items():
        prefix = f"{name}." if name else ""
        try:
            foreign[prefix] = {f"{prefix}{key}": tensor for key, tensor in convert_back(layer).items()}
        except InputError as error:
            raise InputError(f"{name} cannot be converted back: {error}") from error
    if not foreign:
        raise InputError(f"model must have layers replaced by adopt, got a {type(model).__name__} with none")
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        prefixes = filter(name.startswith, foreign)
        state |= next((foreign[prefix] for prefix in prefixes), {name: tensor})
    return state


def _families(module: nn.Module) -> list[Family]:
    return [family for family in FAMILIES if family.recognizes(module)]


def _replacement(layer: nn.Module) -> tuple[str, GridLambdaLayer]:
    """The name of the first family whose converted layer gives the same outputs, and that layer.

    Raises InputError with the reason of the first family.
    """
    errors: list[Exception] = []
    for family in _families(layer):
        try:
            if not any(parameter.is_meta for parameter in layer.parameters()):  # it has values
                check_conversion(layer, family)
            return family.name, convert(layer, family)
        except Exception as error:  # a modified copy of the family's layer may raise anything
            errors.append(error)
    raise InputError(one_line(errors[0])) from errors[0]
