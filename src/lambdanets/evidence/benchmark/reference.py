"""What each contestant must give, in float64 from plain formulas and PyTorch's own gradients.

Nothing here calls the operations that are measured; tests hold the lambda layer against `ops/definition.py`.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lambdanets.layers import LambdaLayer2d
from lambdanets.layers.embeddings import RelativeEmbedding

# Relative error (root mean square) allowed in outputs and gradients of one layer. A wrong formula is off by far more.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Expected:
    """What a contestant must give, by name: "output" and, in training, gradients; the relative errors allowed."""

    tensors: dict[str, Tensor]
    allowed: dict[str, float]

    def check(self, found: dict[str, Tensor]) -> dict[str, "Error"]:
        """The error of each tensor expected."""
        return {name: Error(relative_error(found[name], t), self.allowed[name]) for name, t in self.tensors.items()}


class Error(NamedTuple):
    """A relative error, and the one allowed."""

    relative: float
    allowed: float


def relative_error(found: Tensor, expected: Tensor) -> float:
    """|found - expected| / |expected| by root mean square; infinite where something found is not finite."""
    if found.shape != expected.shape or not found.isfinite().all():
        return float("inf")
    difference = found.detach().double() - expected.detach()
    return float(difference.norm() / expected.detach().norm().clamp(min=torch.finfo(torch.float64).tiny))


class PlainLambdaLayer(nn.Module):
    """The lambda layer with a float64 copy of a layer's weights, by the equations.

    Serves what the benchmarks run: local scope, one head of keys, u = 1, softmax over keys, batch norm.
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
        for i in range(x.shape[0]):  # float64 convolutions unfold a whole batch: an example takes less memory
            convolved = F.conv2d(values[i].unsqueeze(1), weights, padding=padding).flatten(2)  # (v, k, n)
            outputs.append(torch.einsum("hkn,vkn->hvn", queries[i], lambdas[i] + convolved))
        output = torch.stack(outputs).flatten(1, 2).unflatten(2, (height, width))
        if self.stride == 1:
            return output
        window: dict[str, Any] = {"stride": self.stride, "padding": self.stride - 1, "count_include_pad": False}
        return F.avg_pool2d(output, 2 * self.stride - 1, **window)


def plain_copy(model: nn.Module) -> nn.Module:
    """A float64 copy of a network with every LambdaLayer2d by the equations."""
    if isinstance(model, LambdaLayer2d):
        return PlainLambdaLayer(model)
    copied = copy.deepcopy(model)
    for name, module in list(copied.named_modules()):
        if isinstance(module, LambdaLayer2d):
            copied.set_submodule(name, PlainLambdaLayer(module))
    return copied.double()


def expected_of(
    module: nn.Module, x: Tensor, gradient: Tensor | None, more: Callable[[nn.Module], dict[str, Tensor]] | None = None
) -> Expected:
    """Output of a float64 module and, where the gradient of its output is given, that of its input; more after it.

    The errors allowed are those of x's dtype.
    """
    allowed = TOLERANCE[x.dtype]
    x = x.detach().double().requires_grad_(gradient is not None)
    if gradient is None:
        with torch.no_grad():
            tensors = {"output": module(x)}
    else:
        output = module(x)
        output.backward(gradient.double())
        assert x.grad is not None
        tensors = {"output": output.detach(), "input gradient": x.grad} | (more(module) if more else {})
    return Expected(tensors, dict.fromkeys(tensors, allowed))


def attention(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(c) + bias) v: (b, h, n, c) with bias (h or 1, n, n), the scores of one example at a time."""

    def of_example(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
        return (scores + bias).softmax(dim=-1) @ v

    examples = zip(queries, keys, values, strict=True)
    return torch.stack([checkpoint(of_example, *example, use_reentrant=False) for example in examples])
