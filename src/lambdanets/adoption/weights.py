"""The state dict of an adopted network, with the keys and shapes of the original network."""

from torch import Tensor, nn

from lambdanets.adoption.conversion import CannotConvert, convert_back
from lambdanets.adoption.families import FAMILIES
from lambdanets.adoption.family import Family
from lambdanets.adoption.layout import Origin
from lambdanets.errors import InputError
from lambdanets.layers.lambda_layer import GridLambdaLayer


def is_adopted(model: nn.Module) -> bool:
    """Whether a network has layers that `adopt` put there."""
    return any(isinstance(module, GridLambdaLayer) and isinstance(module.origin, Origin) for module in model.modules())


def foreign_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of a network that `adopt` changed, with the keys and shapes of the original network.

    Loads with strict=True into the original network, which then gives the same outputs, also after training. Tensors of
    adopted layers are copies, the others are those of `model.state_dict()`.

    Raises ValueError if the network has no adopted layer, or if one was changed since, for example by resizing its
    table.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a module, got {type(model).__name__}")
    layers: dict[str, tuple[GridLambdaLayer, Family]] = {}  # keyed by prefix in the state dict
    families = {family.name: family for family in FAMILIES}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, GridLambdaLayer) and isinstance(module.origin, Origin):
            layers[f"{name}." if name else ""] = module, families[module.origin.family]
    if not layers:
        raise InputError(f"model must have layers replaced by adopt, got a {type(model).__name__} with none")
    state: dict[str, Tensor] = {}
    for key, tensor in model.state_dict().items():
        prefix = next((prefix for prefix in layers if key.startswith(prefix)), None)
        if prefix is None:
            state[key] = tensor
        elif not any(name.startswith(prefix) for name in state):
            try:
                converted = convert_back(*layers[prefix])
            except CannotConvert as error:
                raise InputError(f"{prefix.removesuffix('.')} cannot be converted back: {error}") from error
            state |= {f"{prefix}{name}": value for name, value in converted.items()}
    return state
