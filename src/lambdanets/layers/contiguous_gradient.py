"""An identity with a contiguous gradient: a workaround for a bug in PyTorch's batch norm on CPU."""

from typing import Any

import torch
from torch import Tensor


class _ContiguousGradient(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.detach()  # unlike a view, it may be modified in place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Tensor:
        # contiguous() alone may do nothing for a batch of 1 with channels-last strides, so flatten as well
        return grad_output.contiguous().flatten().view(grad_output.shape)


class _ForwardModeContiguousGradient(_ContiguousGradient):
    """Adds forward-mode AD, which torch.compile cannot trace."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent.view_as(tangent)


def contiguous_gradient(x: Tensor) -> Tensor:
    """Return x unchanged, and make its gradient contiguous in the backward pass.

    PyTorch's batch norm on CPU silently returns a wrong gradient at batch size 1 if its incoming gradient has strides
    like (C, 1, W C, C). Reshapes between an image and a sequence of positions produce such strides.
    """
    if torch.jit.is_tracing():  # a trace cannot contain an autograd.Function; this has the same gradient
        return x.flatten().view(x.shape)
    if not torch.is_grad_enabled():
        return x
    function = _ContiguousGradient if torch.compiler.is_compiling() else _ForwardModeContiguousGradient
    return function.apply(x)
