"""Makes the incoming gradient of batch norm contiguous, to work around a bug of PyTorch's CPU kernel."""

from typing import Any

import torch
from torch import Tensor


class _ContiguousGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        # flattened, because a batch of 1 with channels-last-like strides may count as contiguous
        return grad_output.contiguous().flatten().view(grad_output.shape)


class _ForwardModeContiguousGradient(_ContiguousGradient):
    """With forward-mode AD, which torch.compile cannot trace."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent.view_as(tangent)


def contiguous_gradient(x: Tensor) -> Tensor:
    """The identity, whose incoming gradient is made contiguous.

    PyTorch's batch norm on CPU silently returns a wrong gradient at batch 1 if the incoming gradient has strides like
    (C, 1, W C, C), which result from reshapes between an image and a sequence of positions.
    """
    if torch.jit.is_tracing():  # a trace cannot contain a Function; these operations return the same gradient
        return x.flatten().view(x.shape)
    if not torch.is_grad_enabled():
        return x
    function = _ContiguousGradient if torch.compiler.is_compiling() else _ForwardModeContiguousGradient
    return function.apply(x)
