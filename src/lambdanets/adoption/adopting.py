"""Replaces the lambda layers of other packages in a network."""

from collections import defaultdict
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from lambdanets.adoption.conversion import CannotConvert, convert
from lambdanets.adoption.families import FAMILIES
from lambdanets.adoption.family import Family
from lambdanets.adoption.trial import check_conversion
from lambdanets.errors import InputError, one_line
from lambdanets.layers import LambdaBase
from lambdanets.layers.initialization import keep_initialization
from lambdanets.layers.lambda_layer import GridLambdaLayer

_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)


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
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a module, got {type(model).__name__}")
    names: dict[nn.Module, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        names[module].append(name)
    candidates = {module: families for module in names if (families := _families(module))}
    if not candidates:
        num_ours = sum(isinstance(module, LambdaBase) for module in names)
        already = f"; it already has {num_ours} layers of lambdanets" if num_ours else ""
        raise InputError(
            f"model must contain lambda layers of {', '.join(family.name for family in FAMILIES)}, "
            f"got a {type(model).__name__} with none{already}"
        )
    if model in candidates:
        raise InputError(
            f"model must be a network, got a lambda layer, {type(model).__name__}, which cannot be replaced in place; "
            "pass nn.Sequential(layer)"
        )
    owners = _owners(model)
    replacements: dict[nn.Module, tuple[Family, GridLambdaLayer]] = {}
    for layer, families in candidates.items():
        try:
            _check_layer(layer, owners)
            replacements[layer] = _replacement(layer, families)
        except CannotConvert as error:
            raise InputError(
                f"{names[layer][0]}, a layer of {families[0].name}, cannot be replaced: {error}"
            ) from error
    adopted = {name: layer for layer in candidates for name in names[layer]}
    for name, layer in adopted.items():
        model.set_submodule(name, replacements[layer][1])
    keep_initialization(model)
    return {name: replacements[layer][0].name for name, layer in adopted.items()}


def has_foreign_layers(model: nn.Module) -> bool:
    """Whether a network has lambda layers of other packages."""
    return any(_families(module) for module in model.modules())


def _families(module: nn.Module) -> list[Family]:
    return [family for family in FAMILIES if family.recognizes(module)]


def _replacement(layer: nn.Module, families: list[Family]) -> tuple[Family, GridLambdaLayer]:
    """The first family whose converted layer gives the same outputs, and that layer."""
    first: CannotConvert | None = None
    for family in families:
        try:
            if not any(parameter.is_meta for parameter in layer.parameters()):  # meta tensors have no values to compare
                check_conversion(layer, family)
            return family, convert(layer, family)
        except CannotConvert as error:
            first = first or error
        except Exception as error:  # a modified copy of the family's layer may have any shapes
            first = first or CannotConvert(f"its tensors do not fit together: {one_line(error)}")
    assert first is not None
    raise first


def _check_layer(layer: Any, owners: dict[int, set[tuple[int, str]]]) -> None:
    """Raise CannotConvert if the replacement loses hooks, a parametrization, a patched forward or weight sharing."""
    for module in layer.modules():
        if is_parametrized(module):
            raise CannotConvert("it has a parametrization; remove it first, by parametrize.remove_parametrizations")
        if any(getattr(module, hooks, None) for hooks in _HOOKS):
            raise CannotConvert("it has hooks, which its replacement would not have; remove them first")
        if "forward" in vars(module):
            raise CannotConvert("its forward is patched on the instance")
    for name, parameter in layer.named_parameters():
        if len(owners[id(parameter)]) > 1:
            raise CannotConvert(f"its {name} is also a parameter of another module")


def _owners(model: nn.Module) -> dict[int, set[tuple[int, str]]]:
    """Map the id of each parameter to the modules that own it, as (id of the module, name of the parameter)."""
    owners: dict[int, set[tuple[int, str]]] = defaultdict(set)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners[id(parameter)].add((id(module), name))
    return owners
