"""Keeps the initialization of projections when other code initializes a network.

Such code selects modules by their type, as timm's `init_weights` does, or calls `reset_parameters` of every module. For
it, a projection is an nn.Conv2d or nn.Linear like others.
"""

import weakref
from collections.abc import Callable
from typing import Any

from torch import nn


class _Method:
    """A method of one module, set as its attribute. Unlike a bound method, it does not keep the module in memory."""

    def __init__(self, function: Callable[..., None], module: nn.Module, *args: Any) -> None:
        self._function, self._module, self._args = function, weakref.ref(module), args

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self._function(self._module(), *self._args, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:  # to copy and pickle the module
        return _Method, (self._function, self._module(), *self._args)


def set_initialization(projection: Any, std: float) -> None:
    """Make `reset_parameters` of a projection draw its weight from a normal distribution with this std."""
    projection.reset_parameters = _Method(_draw_weight, projection, std)


def keep_initialization(network: nn.Module) -> None:
    """Make `init_weights` of a network, and of the modules in it, call `reset_parameters` of projections at the end."""
    for module in network.modules():
        if hasattr(type(module), "init_weights"):
            # on the instance, because the class may be shared with networks without lambda layers
            vars(module)["init_weights"] = _Method(_init_weights, module)


def _draw_weight(projection: Any, std: float) -> None:
    nn.init.normal_(projection.weight, std=std)


def _init_weights(network: Any, *args: Any, **kwargs: Any) -> None:
    type(network).init_weights(network, *args, **kwargs)
    for module in network.modules():
        reset = vars(module).get("reset_parameters")
        if isinstance(reset, _Method):
            reset()
