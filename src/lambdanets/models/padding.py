"""Hooks that make the features of a network independent of padding, and a check that they do.

Images of different sizes are batched by padding them at the right and bottom. Convolutions then mix padding into valid
positions, and means and batch norm statistics include padding. Hooks overwrite the padding before each operation that
mixes positions. Between these operations, it may have any content.

The sizes belong to one forward pass, not to the network, so that several threads can use one network.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from timm.layers import DropPath, EffectiveSEModule, FrozenBatchNormAct2d, LayerNorm2d, SEModule
from timm.models._efficientnet_blocks import SqueezeExcite
from timm.models.senet import SEModule as LegacySEModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from lambdanets.adoption.trial import randomize
from lambdanets.errors import InputError, one_line
from lambdanets.layers import LambdaLayer2d

_SQUEEZE_EXCITATIONS = (SEModule, LegacySEModule, EffectiveSEModule, SqueezeExcite)
_POSITIONWISE = (  # modules that do not mix positions; containers may be empty
    *(nn.Identity, nn.Sequential, nn.ModuleList, nn.Dropout, nn.Dropout2d, DropPath),
    *(LayerNorm2d, FrozenBatchNorm2d, FrozenBatchNormAct2d, LastLevelMaxPool),
)
_ACTIVATIONS = ("torch.nn.modules.activation", "timm.layers.activations", "timm.layers.activations_me")
_SIDE = 64  # of the images of the check, in pixels
_TOLERANCE = 1e-8  # relative to the maximum of a map; rounding errors in float64 are below 1e-12


class Padding:
    """The sizes of the images of a padded batch, at each resolution of the network.

    Args:
        sizes: height and width of each image, in pixels.
        padded_size: height and width of the batch, in pixels, multiples of the strides of the network.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]], padded_size: Sequence[int]) -> None:
        self.sizes, self._padded_size = sizes, padded_size
        self.exists = any(tuple(size) != tuple(padded_size) for size in sizes)
        self._masks: dict[torch.Size, Tensor] = {}  # by grid

    def mask(self, maps: Tensor) -> Tensor:
        """Return a bool mask (b, h, w) for maps (b, ..., h, w), True at valid positions."""
        grid = maps.shape[-2:]
        if grid not in self._masks:
            heights, widths = torch.tensor(self.valid_sizes(grid), device=maps.device).T[..., None, None]
            rows, columns = (torch.arange(side, device=maps.device) for side in grid)
            self._masks[grid] = (rows[:, None] < heights) & (columns < widths)
        return self._masks[grid]

    def valid_sizes(self, grid: torch.Size) -> list[tuple[int, int]]:
        """Return the sizes of the valid part of maps: those of the images / stride, rounded up."""
        strides = [side // map_side for side, map_side in zip(self._padded_size, grid, strict=True)]
        return [(-(-height // strides[0]), -(-width // strides[1])) for height, width in self.sizes]

    def fill(self, maps: Tensor, value: float | Tensor = 0.0) -> Tensor:
        """Return the maps (b, c, h, w) with their padding filled with a value."""
        return torch.where(self.mask(maps)[:, None], maps, value)

    def fill_mean(self, maps: Tensor) -> Tensor:
        """Fill the padding with the mean of the valid positions, which is then that of all positions."""
        num_valid = self.mask(maps).sum((1, 2))[:, None, None, None]
        return self.fill(maps, self.fill(maps).sum((2, 3), True) / num_valid)

    def replicate_border(self, maps: Tensor) -> Tensor:
        """Return the maps (b, c, h, w) with the last valid row and column in the padding."""
        images, grid = [], maps.shape[-2:]
        for image, (height, width) in zip(maps.split(1), self.valid_sizes(grid), strict=True):
            pads = (0, grid[1] - width, 0, grid[0] - height)
            images.append(F.pad(image[..., :height, :width], pads, mode="replicate"))
        return torch.cat(images)


_NONE = Padding((), ())
_in_forward: ContextVar[Padding] = ContextVar("padding of the batch in the forward pass", default=_NONE)
# By autograd's number of the backward pass, as in torch.utils.checkpoint. An entry ends with its graph.
_in_backward: WeakValueDictionary[int, Padding] = WeakValueDictionary()


@contextmanager
def padded_batch(sizes: Sequence[tuple[int, int]], padded_size: Sequence[int]) -> Iterator[None]:
    """Within the block, forward passes of this thread are of a padded batch; see `Padding`."""
    token = _in_forward.set(Padding(sizes, padded_size))
    try:
        yield
    finally:
        _in_forward.reset(token)


def current_padding() -> Padding | None:
    """Return the padding in this forward pass or recomputation; None if no image is padded."""
    padding = _in_backward.get(torch._C._current_graph_task_id(), _in_forward.get())
    return padding if padding.exists else None


def keep_for_backward(output: Tensor) -> Tensor:
    """Return the output of a network, whose backward pass will have the padding of this forward pass.

    Gradient checkpointing calls layers again in the backward pass, in a thread of autograd's choice.
    """
    padding = _in_forward.get()
    if output.requires_grad:
        output.register_hook(lambda _: _in_backward.update({torch._C._current_graph_task_id(): padding}))
    return output


def add_padding_hooks(module: nn.Module, name: str = "") -> None:
    """Add hooks to a network or layer, so that its outputs at valid positions do not depend on padding.

    In eval mode, the outputs of a `padded_batch` equal those for each image alone, up to rounding. In
    training, batch norm uses the valid positions of all images. Lambda layers get a mask, which
    excludes padding from the softmax of the keys and from the position term. Raises InputError with the
    layer's name if it has an unsupported type, such as attention. name: of the module, for the message.
    """
    overwrite: Callable[[Padding, Tensor], Tensor] | None = None
    if isinstance(module, LambdaLayer2d):
        module.register_forward_pre_hook(_pass_mask, with_kwargs=True)
    elif isinstance(module, _BatchNorm):
        module.register_forward_pre_hook(_gather_valid)
        module.register_forward_hook(_scatter_valid)
    elif isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
        overwrite = Padding.fill if max(module.kernel_size) > 1 else None
    elif type(module) is nn.MaxPool2d and module.dilation == 1:
        overwrite = Padding.replicate_border  # repeated values do not change a maximum
    elif type(module) is nn.AvgPool2d and module.count_include_pad:
        overwrite = Padding.fill
    elif type(module) is nn.AvgPool2d and {module.kernel_size, module.stride} == {2}:
        overwrite = Padding.replicate_border  # a window repeats each of its valid values, or none
    elif type(module) in _SQUEEZE_EXCITATIONS and not getattr(module, "add_maxpool", False):
        overwrite = Padding.fill_mean
    elif children := list(module.named_children()):
        for child_name, child in children:
            add_padding_hooks(child, f"{name}.{child_name}".lstrip("."))
    elif not isinstance(module, _POSITIONWISE) and type(module).__module__ not in _ACTIVATIONS:
        raise InputError(
            f"padding cannot be hidden in {name or 'the network'}, a {type(module).__name__}; use a network of "
            "convolutions, pooling, batch norm, squeeze-and-excitation and lambda layers, or hide_padding=False"
        )
    if overwrite:
        module.register_forward_pre_hook(partial(_overwrite_padding, overwrite))


# Hooks. None changes nothing.


def _overwrite_padding(overwrite: Any, module: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
    padding = current_padding()
    return overwrite(padding, inputs[0]) if padding else None


def _pass_mask(layer: nn.Module, inputs: tuple[Tensor], options: dict[str, Any]) -> Any:
    padding = current_padding()
    return (inputs, options | {"mask": padding.mask(inputs[0])}) if padding else None


def _gather_valid(norm: nn.Module, inputs: tuple[Tensor]) -> Any:
    padding, grid = current_padding(), inputs[0].shape[-2:]
    if padding is None or not norm.training:
        return None
    gathered: Any = _Move.apply(inputs[0], padding.valid_sizes(grid), None)
    gathered.sizes_and_grid = padding.valid_sizes(grid), grid  # for the next hook
    return gathered


def _scatter_valid(norm: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor | None:
    sizes_and_grid = getattr(inputs[0], "sizes_and_grid", None)
    return _Move.apply(output, *sizes_and_grid) if sizes_and_grid else None


class _Move(torch.autograd.Function):
    """Copies the valid positions of maps (b, c, h, w) to (1, c, positions, 1), or back to a grid (h, w).

    Each is the other's backward pass. Slices are faster than an index or a mask.
    """

    @staticmethod
    def forward(ctx: Any, source: Tensor, sizes: list[tuple[int, int]], grid: torch.Size | None) -> Tensor:
        ctx.sizes, ctx.grid = sizes, source.shape[-2:] if grid is None else None
        areas, channels = [height * width for height, width in sizes], source.shape[1]
        shape = (1, channels, sum(areas), 1) if grid is None else (len(sizes), channels, *grid)
        layout = torch.contiguous_format if source.is_contiguous() else torch.channels_last
        target = torch.empty(shape, dtype=source.dtype, device=source.device, memory_format=layout)
        maps, rows = (source, target) if grid is None else (target, source)
        parts = rows[0, :, :, 0].split(areas, 1)
        for image, (height, width), part in zip(maps, sizes, parts, strict=True):
            valid, part = image[:, :height, :width], part.unflatten(1, (height, width))
            if grid is None:
                part.copy_(valid)
            else:
                valid.copy_(part)
                image[:, height:] = 0
                image[:, :height, width:] = 0
        return target

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return _Move.apply(grad_output, ctx.sizes, ctx.grid), None, None


def check_padded_batches(pyramid: Any, name: str, hide_padding: bool) -> None:
    """Raise InputError unless a network accepts all batches, and its maps ignore padding if it is hidden.

    `add_padding_hooks` checks the types of layers, but cannot see operations in `forward`, such as a
    mean over positions. Therefore this runs a float64 copy with random weights.

    pyramid: a `PyramidBackbone`. name: of its network, for messages.
    """
    stride = pyramid.strides[-1]
    side = max(_SIDE, stride)
    # at the bottom with and without padding, at the right with more and less
    sizes = [(side, side * 5 // 8)]
    channels = next(pyramid.parameters()).shape[1]
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(1, channels, 2 * side, 3 * side, generator=generator, device="cpu").double()
    # at initialization, residual branches output 0, which would hide errors
    network = randomize(copy.deepcopy(pyramid).to("cpu", torch.float64).eval(), generator)
    try:
        with torch.no_grad(), padded_batch(sizes, images.shape[-2:]):
            more_padded = network(images)
        with torch.no_grad(), padded_batch(sizes, (side, side)):
            less_padded = network(images[:, :, :side, :side])
    except Exception as error:  # networks raise many types of exceptions for an unsupported size
        raise InputError(
            f"{name} does not accept images whose sides are any multiples of {stride}, as batches "
            f"have: {one_line(error)}; use another network"
        ) from error
    for level, maps in less_padded.items() if hide_padding else ():
        height, width = maps.shape[2], -(-maps.shape[3] * 5 // 8)
        expected, actual = (each[..., :height, :width] for each in (maps, more_padded[level]))
        if not (actual - expected).abs().max() <= _TOLERANCE * expected.abs().max():
            raise InputError(
                f"padding cannot be hidden in {name}: its maps depend on padding; use another network, "
                "or hide_padding=False"
            )
