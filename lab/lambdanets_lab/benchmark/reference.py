"""Expected outputs and gradients of each candidate, computed in float64 from the equations with PyTorch's autograd.

This module does not call the operations that it verifies; tests compare its lambda layer with `ops/definition.py`.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lambdanets.layers import LambdaLayer2d
from lambdanets.layers.embeddings import RelativeEmbedding

# Tolerances of the relative RMS error of outputs and gradients; the errors of a wrong formula are much larger.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Expected:
    """Expected output and, in training, gradients by name, with their relative tolerance."""

    tensors: dict[str, Tensor]
    tolerance: float

    def check(self, actual: dict[str, Tensor]) -> dict[str, "Error"]:
        """Return the error of each expected tensor."""
        return {name: Error(relative_error(actual[name], t), self.tolerance) for name, t in self.tensors.items()}


class Error(NamedTuple):
    """A relative error and its tolerance."""

    relative: float
    tolerance: float


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the relative L2 error; inf for non-finite values or another shape."""
    if actual.shape != expected.shape or not actual.isfinite().all():
        return float("inf")
    difference = actual.detach().double() - expected.detach()
    return float(difference.norm() / expected.detach().norm().clamp(min=torch.finfo(torch.float64).tiny))


class ReferenceLambdaLayer(nn.Module):
    """A float64 implementation of the lambda layer's equations, with a copy of a layer's weights.

    It supports what the benchmarks use: local scope, one head of keys, u = 1, softmax over keys, and batch norm.
    """

    def __init__(self, layer: LambdaLayer2d) -> None:
        super().__init__()
        assert isinstance(layer.embedding, RelativeEmbedding)
        assert layer.key_projection is not None
        assert layer.intra_depth == 1
        self.query_projection = copy.deepcopy(layer.query_projection).double()
        self.key_projection = copy.deepcopy(layer.key_projection).double()
        self.value_projection = copy.deepcopy(layer.value_projection).double()
        self.query_norm, self.value_norm = copy.deepcopy((layer.query_norm, layer.value_norm))
        self.double()
        self.table = nn.Parameter(layer.embedding.table.detach().double())
        self.heads, self.stride = layer.heads, layer.stride
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        queries = self.query_norm(self.query_projection(x)).contiguous().flatten(2).unflatten(1, (self.heads, -1))
        keys = self.key_projection(x).flatten(2).softmax(dim=2)  # (b, k, m)
        values = self.value_norm(self.value_projection(x)).contiguous()  # (b, v, H, W)
        lambdas = torch.einsum("bkm,bvm->bvk", keys, values.flatten(2)).unsqueeze(-1)
        weights = self.table.movedim(-1, 0).unsqueeze(1)  # (k, 1, r, r)
        padding = [side // 2 for side in weights.shape[2:]]
        outputs = []
        for i in range(x.shape[0]):  # per example, since float64 convolutions would unfold the whole batch
            convolved = F.conv2d(values[i].unsqueeze(1), weights, padding=padding).flatten(2)  # (v, k, n)
            outputs.append(torch.einsum("hkn,vkn->hvn", queries[i], lambdas[i] + convolved))
        output = torch.stack(outputs).flatten(1, 2).unflatten(2, (height, width))
        if self.stride == 1:
            return output
        border = self.stride - 1
        return F.avg_pool2d(output, self.stride + border, self.stride, border, count_include_pad=False)


def reference_copy(model: nn.Module) -> nn.Module:
    """Copy a network to float64, with every LambdaLayer2d replaced by a ReferenceLambdaLayer."""
    if isinstance(model, LambdaLayer2d):
        return ReferenceLambdaLayer(model)
    copied = copy.deepcopy(model)
    for name, module in list(copied.named_modules()):
        if isinstance(module, LambdaLayer2d):
            copied.set_submodule(name, ReferenceLambdaLayer(module))
    return copied.double()


def compute_expected(
    module: nn.Module,
    x: Tensor,
    grad_output: Tensor | None,
    extra_gradients: Callable[[nn.Module], dict[str, Tensor]] | None = None,
) -> Expected:
    """Return the output of a float64 module and, if grad_output is given, the input gradient and extra gradients.

    extra_gradients: returns further gradients by name. The tolerance is that of x's dtype.
    """
    tolerance = TOLERANCE[x.dtype]
    x = x.detach().double().requires_grad_(grad_output is not None)
    if grad_output is None:
        with torch.no_grad():
            tensors = {"output": module(x)}
    else:
        output = module(x)
        output.backward(grad_output.double())
        assert x.grad is not None
        tensors = {"output": output.detach(), "input gradient": x.grad} | (
            extra_gradients(module) if extra_gradients else {}
        )
    return Expected(tensors, tolerance)


def attention(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Return softmax(q k^T / sqrt(c) + bias) v for (b, h, n, c), with bias (h or 1, n, n), one example at a time."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
        return (scores + bias).softmax(dim=-1) @ v

    examples = zip(queries, keys, values, strict=True)
    return torch.stack([checkpoint(attend, *example, use_reentrant=False) for example in examples])
