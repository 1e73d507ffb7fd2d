"""Keeps batch norm's incoming gradient in a layout that its CPU kernel reads correctly."""

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
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # by way of one axis, because a size-1 batch with channels-last-like strides can pass for contiguous
        return gradient.contiguous().flatten().view(gradient.shape)


class _ForwardModeContiguousGradient(_ContiguousGradient):
    """The same, with a derivative in forward mode, which torch.compile cannot trace."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent.view_as(tangent)


def contiguous_gradient(x: Tensor) -> Tensor:
    """x, with a gradient that arrives contiguous.

    PyTorch's batch norm on CPU returns a wrong gradient, silently, at batch 1 when the incoming one has strides like
    (C, 1, W C, C); the reshapes between an image and a sequence of positions produce just that.
    """
    if torch.jit.is_tracing():  # the trace cannot hold a Function; these operations return the same gradient
        return x.flatten().view(x.shape)
    if not torch.is_grad_enabled():
        return x
    function = _ContiguousGradient if torch.compiler.is_compiling() else _ForwardModeContiguousGradient
    return function.apply(x)
