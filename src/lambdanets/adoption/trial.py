"""Compares a third-party layer with its replacement on random numbers, in float64 on the CPU."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.adoption.conversion import CannotConvert, convert, convert_back
from lambdanets.adoption.family import Family
from lambdanets.adoption.layout import Layout, shapes_of
from lambdanets.errors import one_line

_BATCH = 2
_TOLERANCE = 1e-9  # relative L2 error; rounding errors in float64 are below 1e-13


def check_conversion(layer: nn.Module, family: Family) -> None:
    """Raise CannotConvert unless a copy of the layer with random weights and its conversion are equivalent.

    Compares outputs and input gradients in evaluation and in training mode, and then the state dict converted back.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.random.fork_rng(devices=[]),
        torch.autocast("cpu", enabled=False),
    ):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would seed the GPUs as well
        theirs = randomize(_with_plain_norms(copy.deepcopy(layer)).to("cpu", torch.float64))
        ours = convert(theirs, family)
        x = torch.randn(_input_shape(theirs, family), dtype=torch.float64)
        for training in (False, True):
            mode = "training" if training else "evaluation"
            expected = _run(theirs.train(training), x, f"it raises for a map {tuple(x.shape)} in {mode}")
            actual = _run(ours.train(training), x, f"its replacement raises for a map {tuple(x.shape)} in {mode}")
            for name, original, replaced in zip(("outputs", "input gradients"), expected, actual, strict=True):
                _compare(name, mode, original, replaced)
        converted_back = convert_back(ours, family)
        for name, tensor in theirs.state_dict().items():
            if tensor.is_floating_point():
                _compare(name, "training, converted back,", tensor, converted_back[name])


def randomize(layer: Any) -> Any:
    """Fill parameters and running statistics with random numbers of magnitudes that are typical after training."""
    with torch.no_grad():
        for name, tensor in layer.state_dict().items():
            if not tensor.is_floating_point():
                continue
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.ndim > 1:
                tensor.normal_(0, max(tensor[0].numel(), 1) ** -0.5)
            else:
                tensor.normal_(0, 0.5)
    return layer


def _input_shape(layer: nn.Module, family: Family) -> tuple[int, ...]:
    """Shape of an input that uses all table entries, with even sides of different lengths unless the grid is fixed."""
    shapes = shapes_of(layer)
    layout: Layout = family.layout(shapes, family.heads(layer))
    sides = layout.grid
    if sides is None:
        table = layout.table.pick(torch.empty(shapes[layout.table.name], device="meta"))
        min_sides = (side // 2 + 1 for side in table.shape[: layout.dimensions])
        sides = tuple(max(side + side % 2, 4) + 2 * axis for axis, side in enumerate(min_sides))
    channels = shapes[f"{layout.values.projection}.weight"][1]
    return (_BATCH, channels, *sides)


def _run(layer: nn.Module, x: Tensor, message: str) -> tuple[Tensor, Tensor]:
    """The output, and the input gradient of a weighted sum of the squared outputs."""
    x = x.detach().requires_grad_()
    try:
        output = layer(x)
        weights = torch.linspace(0, 1, output[0, 0].numel(), dtype=output.dtype).view(output.shape[2:])
        (gradient,) = torch.autograd.grad((output.square() * weights).sum(), x)
    except Exception as error:  # third-party modules may raise any exception
        raise CannotConvert(f"{message}: {one_line(error)}") from error
    return output.detach(), gradient


def _compare(name: str, mode: str, expected: Tensor, actual: Tensor) -> None:
    if expected.shape != actual.shape:
        raise CannotConvert(f"its {name} in {mode} are {tuple(expected.shape)}, not {tuple(actual.shape)}")
    difference = float((actual - expected).norm() / expected.norm())
    if not difference <= _TOLERANCE:  # NaN is a difference
        raise CannotConvert(f"it is not equivalent: its {name} in {mode} differ by {difference:.1e}")


def _with_plain_norms(layer: Any) -> Any:
    """Replace SyncBatchNorm, which runs on GPUs only, by BatchNorm2d."""
    for name, module in list(layer.named_modules()):
        if isinstance(module, nn.SyncBatchNorm):
            options = (module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
            layer.set_submodule(name, nn.BatchNorm2d(*options))
    return layer
