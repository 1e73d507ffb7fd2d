"""Compares a third-party layer with its replacement on random numbers, in float64 on the CPU."""

import contextlib
import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.adoption.layout import Family, SlicesLambdaLayer, convert, convert_back
from lambdanets.errors import InputError
from lambdanets.layers.lambda_layer import GridLambdaLayer

_BATCH = 2
_TOLERANCE = 1e-9  # relative L2 error; rounding errors in float64 are below 1e-13


def check_conversion(layer: nn.Module, family: Family) -> None:
    """Compare a copy of a layer that has random weights with its conversion.

    Compares outputs and input gradients in evaluation and in training mode, and then the state dict
    converted back. Raises InputError with the difference, or an exception of third-party modules.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.random.fork_rng(devices=[]),
        torch.autocast("cpu", enabled=False),
        torch.device("cpu"),
    ):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed the GPUs as well
        theirs = randomize(copy.deepcopy(layer).to("cpu", torch.float64))
        ours = convert(theirs, family)
        x = _random_map(theirs.eval(), ours)
        for training in (False, True):
            mode = "training" if training else "evaluation"
            expected, actual = (_run(layer.train(training), x) for layer in (theirs, ours))
            _compare(f"outputs in {mode}", expected[0], actual[0])
            _compare(f"input gradients in {mode}", expected[1], actual[1])
        converted_back = convert_back(ours)
        for name, tensor in theirs.state_dict().items():
            if tensor.is_floating_point():
                _compare(f"{name} after training, converted back,", tensor, converted_back[name])


def randomize(layer: Any, generator: torch.Generator | None = None) -> Any:
    """Fill parameters and running statistics with random numbers of usual magnitudes."""
    with torch.no_grad():
        for name, tensor in layer.state_dict().items():
            if not tensor.is_floating_point():
                continue
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5, generator=generator)
            elif tensor.ndim > 1:
                tensor.normal_(0, max(tensor[0].numel(), 1) ** -0.5, generator=generator)
            else:
                tensor.normal_(0, 0.5, generator=generator)
    return layer


def _random_map(theirs: nn.Module, ours: GridLambdaLayer) -> Tensor:
    """A map whose pairs of positions use all entries of the table.

    Its sides are even, of different lengths and larger than needed, if the layer takes such a map.
    """
    embedding: Any = ours.embedding
    batch, scope = _BATCH, getattr(embedding, "scope", None)
    if isinstance(ours, SlicesLambdaLayer):  # the map is a slice
        batch, scope = _BATCH * ours.slices, ours.relative_embeddings[0].scope[1:]
    if scope is not None:
        radii = [side // 2 for side in scope]
        larger = [max(radius // 2 * 2 + 2, 4) + 2 * axis for axis, radius in enumerate(radii)]
        grids = [larger, [radius + 1 for radius in radii]]
    else:  # of all pairs: two sides, as equal as possible
        positions = embedding.positions
        side = next(side for side in range(math.isqrt(positions), 0, -1) if positions % side == 0)
        grids = [[side, positions // side]]
    for grid in grids:
        x = torch.randn(batch, ours.dim, *grid, dtype=torch.float64)
        with contextlib.suppress(Exception):
            theirs(x)
            break
    return x


def _run(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and the input gradient of a weighted sum of the squared outputs."""
    x = x.detach().requires_grad_()
    output = layer(x)
    weights = torch.linspace(0, 1, output[0, 0].numel(), dtype=output.dtype).view(output.shape[2:])
    (gradient,) = torch.autograd.grad((output.square() * weights).sum(), x)
    return output.detach(), gradient


def _compare(name: str, expected: Tensor, actual: Tensor) -> None:
    if expected.shape != actual.shape:
        raise InputError(f"its {name} are {tuple(expected.shape)}, not {tuple(actual.shape)}")
    difference = float((actual - expected).norm() / expected.norm())
    if not difference <= _TOLERANCE:  # NaN is a difference
        raise InputError(f"it is not equivalent: its {name} differ by {difference:.1e}")
