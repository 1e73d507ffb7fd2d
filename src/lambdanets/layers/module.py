"""Base class of all layers: errors for unknown arguments, and support for torch.fx and torch.jit.trace."""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from lambdanets.errors import did_you_mean

# Names that other packages and torch.nn use for the arguments of these layers.
SYNONYMS = {
    "num_heads": "heads", "n_heads": "heads", "nhead": "heads", "n_head": "heads", "head": "heads",
    "dim_k": "query_depth", "qk_dim": "query_depth", "dim_qk": "query_depth", "dim_key": "query_depth",
    "key_dim": "query_depth", "dim_head": "query_depth", "head_dim": "query_depth", "k": "query_depth",
    "dim_u": "intra_depth", "u": "intra_depth",
    "kernel_size": "scope", "r": "scope", "window_size": "scope", "receptive_field": "scope", "m": "scope",
    "feat_size": "grid", "n": "grid", "img_size": "grid",
    "in_channels": "dim", "in_dim": "dim", "dim_in": "dim", "in_features": "dim", "channels": "dim",
    "out_channels": "dim_out", "out_dim": "dim_out", "out_features": "dim_out",
    "context_dim": "dim_context", "kdim": "dim_context", "norm": "batch_norm", "is_causal": "causal",
}  # fmt: skip


class Layer(nn.Module):
    """Base class of the layers.

    An unknown constructor argument raises TypeError, which names the class and suggests the nearest argument.
    torch.fx treats a layer as one node, with any tracer: `forward` returns `fx_call` if x is an fx.Proxy.
    torch.jit.trace records PyTorch operations for the sizes of the example inputs.
    torch.jit.script raises NotImplementedError.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            type.__setattr__(cls, "__init__", _with_helpful_type_errors(vars(cls)["__init__"]))

    def fx_call(self, x: fx.Proxy, *inputs: Any, **kwargs: Any) -> Any:
        """Add a call of this layer to the torch.fx graph that traces x, as one node."""
        tracer: Any = x.tracer
        name = tracer.path_of_module(self)
        if not name:
            raise NotImplementedError(
                f"{type(self).__name__} is a single node to torch.fx: trace the network around it, "
                "or use torch.export.export(layer, (x,))"
            )
        return tracer.create_proxy("call_module", name, (x, *inputs), kwargs)

    def _slow_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call forward under torch.jit.trace, without warnings that sizes become constants; nn.Module calls this."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=r"lambdanets(_lab)?\.")
            return super()._slow_forward(*inputs, **kwargs)

    def __prepare_scriptable__(self) -> Any:
        raise NotImplementedError(
            f"{type(self).__name__} cannot be compiled by torch.jit.script, which PyTorch deprecates; "
            "use torch.export.export(model, (x,)) or torch.jit.trace(model, x)"
        )


def _with_helpful_type_errors(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor so that its TypeErrors name the class and suggest the nearest argument."""
    signature = inspect.signature(init)
    parameters = list(signature.parameters.values())[1:]
    has_var_keyword = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = [parameter.name for parameter in parameters]
    positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]

    @functools.wraps(init)
    def checked(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        constructor = f"{type(self).__name__}()"
        unknown = next((name for name in kwargs if name not in names), None)
        if unknown is not None and not has_var_keyword:
            suggestion = did_you_mean(unknown, names, SYNONYMS) or f"; its arguments are {', '.join(names)}"
            raise TypeError(f"{constructor} got an unexpected argument {unknown}{suggestion}")
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            if len(args) > len(positional):
                accepted = f"{len(positional)} positional arguments, {', '.join(positional)}"
                raise TypeError(f"{constructor} takes at most {accepted}, got {len(args)}; use keywords") from None
            raise TypeError(f"{constructor}: {error}") from None
        init(self, *args, **kwargs)

    return checked
