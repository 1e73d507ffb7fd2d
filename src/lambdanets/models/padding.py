"""Hooks that make the features of a network independent of the padding of its images.

Images of different sizes are batched by padding them at the right and bottom. Convolutions then mix padding into valid
positions, and means and batch norm statistics include padding. Hooks overwrite the padding before each operation that
mixes positions. Between these operations, the padding may have any content.

The sizes belong to one forward pass, not to the network, so that several threads can use one network.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from timm.layers import DropPath, EffectiveSEModule, FrozenBatchNormAct2d, LayerNorm2d, SEModule
from timm.models._efficientnet_blocks import SqueezeExcite
from timm.models.senet import SEModule as LegacySEModule
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from lambdanets.errors import InputError
from lambdanets.layers import LambdaLayer2d

_SQUEEZE_EXCITATIONS = (SEModule, LegacySEModule, EffectiveSEModule, SqueezeExcite)
_POSITIONWISE = (  # modules that do not mix positions
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
    DropPath,
    FrozenBatchNorm2d,
    FrozenBatchNormAct2d,
    LayerNorm2d,
    LastLevelMaxPool,
)
_ACTIVATIONS = ("torch.nn.modules.activation", "timm.layers.activations", "timm.layers.activations_me")

Sizes = tuple[tuple[int, int], ...]  # height and width of the valid part of the maps of each image


class Padding:
    """The sizes of the images of a padded batch, at each resolution of the network.

    Args:
        sizes: height and width of each image, in pixels.
        padded_size: height and width of the batch, in pixels.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]], padded_size: Sequence[int]) -> None:
        self.sizes = sizes
        self.gathered: list[tuple[int, int]] = []  # grids of the maps of the batch norms that are running
        self._padded_size = padded_size
        self._valid_sizes: dict[tuple[int, int], Sizes] = {}
        self._masks: dict[tuple[int, int], Tensor] = {}

    def valid_sizes(self, grid: tuple[int, int]) -> Sizes:
        """Return the height and width of the valid part of maps (b, ..., *grid), by image.

        If the batch has been downsampled to the maps by a stride, which must be a power of two, then the sides of the
        valid part are the sides of the image divided by this stride and rounded up.
        """
        if grid not in self._valid_sizes:
            sides = zip(self._padded_size, grid, strict=True)
            strides = [_downsampling_stride(side, map_side) for side, map_side in sides]
            self._valid_sizes[grid] = tuple((_ceil_div(h, strides[0]), _ceil_div(w, strides[1])) for h, w in self.sizes)
        return self._valid_sizes[grid]

    def mask(self, maps: Tensor) -> Tensor:
        """Return a bool mask (b, h, w) for maps (b, ..., h, w), True at valid positions."""
        grid = _grid(maps)
        if grid not in self._masks:
            sides = torch.tensor(self.valid_sizes(grid), device=maps.device)
            rows, columns = (torch.arange(n, device=maps.device) < sides[:, i, None] for i, n in enumerate(grid))
            self._masks[grid] = rows[:, :, None] & columns[:, None, :]
        return self._masks[grid]

    def fill(self, maps: Tensor, value: float = 0.0) -> Tensor:
        """Return the maps (b, c, h, w) with their padding filled with a value."""
        return _Fill.apply(maps, self.valid_sizes(_grid(maps)), value)

    def replicate_border(self, maps: Tensor) -> Tensor:
        """Return the maps (b, c, h, w) with the last valid row and column replicated into the padding."""
        images = []
        for image, (height, width) in zip(maps, self.valid_sizes(_grid(maps)), strict=True):
            pads = (0, maps.shape[-1] - width, 0, maps.shape[-2] - height)
            images.append(F.pad(image[None, :, :height, :width], pads, mode="replicate"))
        return torch.cat(images)

    def restore_in_backward(self, output: Tensor) -> Tensor:
        """Return the output of a network, whose backward pass makes this the current padding again.

        Gradient checkpointing calls the layers again in the backward pass, in a thread of autograd's choice.
        """
        if output.requires_grad:
            output.register_hook(self._enter_backward)
        return output

    def _enter_backward(self, grad_output: Tensor) -> None:
        _in_backward[torch._C._current_graph_task_id()] = self


_in_forward: ContextVar[Padding | None] = ContextVar("padding of the batch in the forward pass", default=None)
# By autograd's number of the backward pass, as in torch.utils.checkpoint; an entry ends with its graph.
_in_backward: WeakValueDictionary[int, Padding] = WeakValueDictionary()


@contextmanager
def padded_batch(sizes: Sequence[tuple[int, int]], padded_size: Sequence[int]) -> Iterator[None]:
    """Within the block, forward passes of this thread are of images of these sizes, padded to `padded_size`.

    Args:
        sizes: height and width of each image, in pixels.
        padded_size: height and width of the batch, in pixels.
    """
    is_padded = any(tuple(size) != tuple(padded_size) for size in sizes)
    token = _in_forward.set(Padding(sizes, padded_size) if is_padded else None)
    try:
        yield
    finally:
        _in_forward.reset(token)


def current_padding() -> Padding | None:
    """Return the padding of the batch of this forward pass or recomputation; None if no image is padded."""
    return _in_forward.get() or _in_backward.get(torch._C._current_graph_task_id())


def add_padding_hooks(network: nn.Module) -> None:
    """Add hooks to a network, so that its outputs at valid positions do not depend on padding, up to rounding.

    In eval mode, the outputs of a `padded_batch` equal those for each image alone. In training, batch norm uses the
    valid positions of all images. Lambda layers get a mask, which excludes padding from the softmax of the keys and
    from the position term. Raises InputError naming the layer if a layer has an unsupported type, such as attention.
    """
    modules = [("", network)]
    while modules:
        name, module = modules.pop()
        if _add_hooks(module):
            continue
        children = list(module.named_children())
        if not children:
            raise InputError(
                f"padding cannot be hidden in {name or 'the network'}, a {type(module).__name__}; use a network "
                "of convolutions, pooling, batch norm, squeeze-and-excitation and lambda layers, or "
                "hide_padding=False"
            )
        modules += [(f"{name}.{child}".lstrip("."), inner) for child, inner in children]


def _add_hooks(module: nn.Module) -> bool:
    """Add the hooks that a module needs; return False if its children need hooks instead."""
    if isinstance(module, LambdaLayer2d):
        module.register_forward_pre_hook(_pass_mask, with_kwargs=True)
    elif isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
        if max(module.kernel_size) > 1:
            module.register_forward_pre_hook(_fill_zeros)
    elif type(module) is nn.MaxPool2d:
        module.register_forward_pre_hook(_fill_min)
        module.register_forward_hook(_fill_output_zeros)
    elif type(module) is nn.AvgPool2d:
        module.register_forward_pre_hook(_fill_zeros)
        if not module.count_include_pad:
            module.register_forward_hook(_rescale_average)
    elif isinstance(module, nn.modules.batchnorm._BatchNorm):
        module.register_forward_pre_hook(_gather_valid)
        module.register_forward_hook(_scatter_valid)
    elif type(module) in _SQUEEZE_EXCITATIONS and not getattr(module, "add_maxpool", False):
        module.register_forward_pre_hook(_fill_mean)
    else:
        is_positionwise = isinstance(module, _POSITIONWISE) or type(module).__module__ in _ACTIVATIONS
        # nn.MultiheadAttention is in the module of the activations; empty containers do nothing
        return (is_positionwise and not isinstance(module, nn.MultiheadAttention)) or _is_empty(module)
    return True


# Each hook returns None, which changes nothing, if no image is padded.


def _pass_mask(module: nn.Module, inputs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    padding = current_padding()
    return None if padding is None else (inputs, options | {"mask": padding.mask(inputs[0])})


def _fill_zeros(module: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
    padding = current_padding()
    return None if padding is None else padding.fill(inputs[0])


def _fill_min(module: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
    padding = current_padding()
    return None if padding is None else padding.fill(inputs[0], torch.finfo(inputs[0].dtype).min)


def _fill_output_zeros(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
    padding = current_padding()
    return None if padding is None else padding.fill(output)


def _fill_mean(module: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
    """Fill the padding with the mean of the valid positions, which is then also the mean of all positions."""
    padding = current_padding()
    if padding is None:
        return None
    mask = padding.mask(inputs[0]).unsqueeze(1)
    mean = padding.fill(inputs[0]).sum((2, 3), keepdim=True) / mask.sum((2, 3), keepdim=True)
    return torch.where(mask, inputs[0], mean)


def _rescale_average(pool: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor | None:
    padding = current_padding()
    if padding is None:
        return None
    valid_fraction = F.avg_pool2d(
        padding.mask(inputs[0]).unsqueeze(1).to(output.dtype),
        pool.kernel_size,
        pool.stride,
        pool.padding,
        pool.ceil_mode,
        count_include_pad=False,
    )
    return padding.fill(output / valid_fraction.clamp(min=torch.finfo(valid_fraction.dtype).tiny))


def _gather_valid(norm: nn.Module, inputs: tuple[Tensor]) -> Tensor | None:
    """Gather the valid positions for a batch norm in training; `_scatter_valid` makes maps of its output again."""
    padding = current_padding()
    if padding is None or not norm.training:
        return None
    grid = _grid(inputs[0])
    padding.gathered.append(grid)
    return _Gather.apply(inputs[0], padding.valid_sizes(grid), _memory_format(inputs[0]))


def _scatter_valid(norm: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
    padding = current_padding()
    if padding is None or not norm.training:
        return None
    grid = padding.gathered.pop()
    return _Scatter.apply(output, padding.valid_sizes(grid), grid)


class _Gather(torch.autograd.Function):
    """Gathers the valid positions of maps (b, c, h, w) into (1, c, valid positions of all images, 1)."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, sizes: Sizes, memory_format: torch.memory_format) -> Tensor:
        ctx.sizes, ctx.grid = sizes, maps.shape[-2:]
        num_valid = sum(height * width for height, width in sizes)
        gathered = torch.empty(
            1, maps.shape[1], num_valid, 1, dtype=maps.dtype, device=maps.device, memory_format=memory_format
        )
        for image, view, (height, width) in zip(maps, _image_views(gathered, sizes), sizes, strict=True):
            view.copy_(image[:, :height, :width])
        return gathered

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return _Scatter.apply(grad_output, ctx.sizes, ctx.grid), None, None


class _Scatter(torch.autograd.Function):
    """Scatters gathered positions back into maps, with zeros in the padding; the inverse of `_Gather`."""

    @staticmethod
    def forward(ctx: Any, gathered: Tensor, sizes: Sizes, grid: tuple[int, int]) -> Tensor:
        ctx.sizes, ctx.memory_format = sizes, _memory_format(gathered)
        maps = torch.empty(
            len(sizes),
            gathered.shape[1],
            *grid,
            dtype=gathered.dtype,
            device=gathered.device,
            memory_format=ctx.memory_format,
        )
        for image, view, (height, width) in zip(maps, _image_views(gathered, sizes), sizes, strict=True):
            image[:, :height, :width] = view
        return _fill(maps, sizes, 0.0)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return _Gather.apply(grad_output, ctx.sizes, ctx.memory_format), None, None


class _Fill(torch.autograd.Function):
    """Fills the padding of maps with a value; the gradient of the padding is 0."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, sizes: Sizes, value: float) -> Tensor:
        ctx.sizes = sizes
        return _fill(maps.clone(), sizes, value)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return _Fill.apply(grad_output, ctx.sizes, 0.0), None, None


def _image_views(gathered: Tensor, sizes: Sizes) -> list[Tensor]:
    """Return one view (c, h, w) per image of a gathered tensor (1, c, valid positions of all images, 1)."""
    views = gathered[0, :, :, 0].split([height * width for height, width in sizes], dim=1)
    return [view.unflatten(1, size) for view, size in zip(views, sizes, strict=True)]


def _grid(maps: Tensor) -> tuple[int, int]:
    return maps.shape[-2], maps.shape[-1]


def _memory_format(maps: Tensor) -> torch.memory_format:
    channels_last = not maps.is_contiguous() and maps.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format


def _fill(maps: Tensor, sizes: Sizes, value: float) -> Tensor:
    """Fill the padding of maps with a value, in place."""
    for image, (height, width) in zip(maps, sizes, strict=True):
        image[:, height:].fill_(value)
        image[:, :height, width:].fill_(value)
    return maps


def _is_empty(module: nn.Module) -> bool:
    """Return whether a module is an empty container, such as an identity shortcut."""
    return isinstance(module, nn.Sequential | nn.ModuleList) and not len(module)


def _ceil_div(side: int, stride: int) -> int:
    return -(-side // stride)


def _downsampling_stride(side: int, target: int) -> int:
    """Return the smallest power of two that downsamples `side` to at most `target`."""
    stride = 1
    while _ceil_div(side, stride) > target:
        stride *= 2
    return stride
