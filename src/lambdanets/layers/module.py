"""Base class of all layers: support for torch.fx and torch.jit.trace."""

import warnings
from typing import Any

import torch
from torch import fx, nn

# torch.jit.trace makes sizes constant, as documented
warnings.filterwarnings("ignore", category=torch.jit.TracerWarning, module=r"lambdanets(_lab)?\.")


class Layer(nn.Module):
    """Base class of the layers.

    torch.fx treats a layer as one node, with any tracer: `forward` returns `fx_call` if x is an fx.Proxy.
    torch.jit.trace records PyTorch operations for the sizes of the example inputs.
    """

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
