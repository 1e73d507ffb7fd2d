"""Hooks that make the features of a network independent of the padding of its images.

Images of different sizes are batched by padding them at the right and bottom. Convolutions then mix padding into valid
positions, and means and batch norm statistics include padding. Hooks overwrite the padding before each operation that
mixes positions. Between these operations, the padding may have any content.
"""

from collections.abc import Sequence
from typing import Any

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

_SQUEEZE_LAYERS: dict[type[nn.Module], str] = {  # the layer after the mean, by type of squeeze-and-excitation module
    SEModule: "fc1",
    LegacySEModule: "fc1",
    EffectiveSEModule: "fc",
    SqueezeExcite: "conv_reduce",
}
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
    """Image sizes of a batch, and hooks that use them to mask the padding.

    `attach` adds the hooks to a network; several networks of a model may share one object. Call `set_sizes` before each
    forward pass. The sizes stay until the next call, so gradient checkpointing recomputes with the same ones.
    """

    def __init__(self) -> None:
        self._padded_size = (0, 0)  # height and width of the batch
        self._sizes: Sequence[tuple[int, int]] | None = None
        self._valid_sizes: dict[tuple[int, int], Sizes] = {}
        self._masks: dict[tuple[int, int], Tensor] = {}

    def set_sizes(self, sizes: Sequence[tuple[int, int]] | None, padded_size: tuple[int, int]) -> None:
        """Set the sizes for the next forward pass.

        Args:
            sizes: height and width of each image, in pixels; None if there is no padding.
            padded_size: height and width of the padded batch, in pixels.
        """
        no_padding = sizes is None or all(tuple(size) == tuple(padded_size) for size in sizes)
        self._padded_size, self._sizes = padded_size, None if no_padding else sizes
        self._valid_sizes, self._masks = {}, {}

    def valid_sizes(self, maps: Tensor) -> Sizes | None:
        """Return the height and width of the valid part of maps (b, ..., h, w) by image; None if no image is padded.

        If the batch has been downsampled to the maps by a stride, which must be a power of two, then the sides of the
        valid part are the sides of the image divided by this stride and rounded up.
        """
        if self._sizes is None:
            return None
        grid = (maps.shape[-2], maps.shape[-1])
        if grid not in self._valid_sizes:
            if len(self._sizes) != len(maps):
                raise InputError(f"maps must have as many images as set_sizes, {len(self._sizes)}, got {len(maps)}")
            strides = [
                _downsampling_stride(side, map_side) for side, map_side in zip(self._padded_size, grid, strict=True)
            ]
            self._valid_sizes[grid] = tuple(
                (_ceil_div(h, strides[0]), _ceil_div(w, strides[1])) for h, w in self._sizes
            )
        return self._valid_sizes[grid]

    def mask(self, maps: Tensor) -> Tensor | None:
        """Return a bool mask (b, h, w) for maps (b, ..., h, w), True at valid positions; None if no image is padded."""
        valid_sizes = self.valid_sizes(maps)
        if valid_sizes is None:
            return None
        grid = (maps.shape[-2], maps.shape[-1])
        if grid not in self._masks:
            rows, columns = (torch.arange(side) < torch.tensor(valid_sizes)[:, i, None] for i, side in enumerate(grid))
            self._masks[grid] = (rows[:, :, None] & columns[:, None, :]).to(maps.device)
        return self._masks[grid]

    def fill_padding(self, maps: Tensor, value: float = 0.0) -> Tensor:
        """Return the maps (b, c, h, w) with their padding filled with a value."""
        valid_sizes = self.valid_sizes(maps)
        return maps if valid_sizes is None else _Fill.apply(maps, valid_sizes, value)

    def replicate_border(self, maps: Tensor) -> Tensor:
        """Return the maps (b, c, h, w) with the last valid row and column replicated into the padding."""
        valid_sizes = self.valid_sizes(maps)
        if valid_sizes is None:
            return maps
        images = []
        for image, (height, width) in zip(maps, valid_sizes, strict=True):
            pads = (0, maps.shape[-1] - width, 0, maps.shape[-2] - height)
            images.append(F.pad(image[None, :, :height, :width], pads, mode="replicate"))
        return torch.cat(images)

    def attach(self, network: nn.Module) -> None:
        """Add hooks to a network, so that its outputs at valid positions do not depend on padding, up to rounding.

        In eval mode, these outputs equal those for each image alone. In training, batch norm uses the valid positions
        of all images. Lambda layers get a mask, which excludes padding from the softmax of the keys and from the
        position term. Raises InputError naming the layer if a layer has an unsupported type, such as attention.
        """
        modules = [("", network)]
        while modules:
            name, module = modules.pop()
            if self._add_hooks(module):
                continue
            children = list(module.named_children())
            if not children:
                raise InputError(
                    f"padding cannot be hidden in {name or 'the network'}, a {type(module).__name__}; use a network "
                    "of convolutions, pooling, batch norm, squeeze-and-excitation and lambda layers, or "
                    "hide_padding=False"
                )
            modules += [(f"{name}.{child}".lstrip("."), inner) for child, inner in children]

    def _add_hooks(self, module: nn.Module) -> bool:
        """Add the hooks that a module needs; return False if its children need hooks instead."""
        if isinstance(module, LambdaLayer2d):
            module.register_forward_pre_hook(self._pass_mask, with_kwargs=True)
        elif isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
            if max(module.kernel_size) > 1:
                module.register_forward_pre_hook(self._fill_zeros)
        elif type(module) is nn.MaxPool2d:
            module.register_forward_pre_hook(self._fill_min)
            module.register_forward_hook(self._fill_output_zeros)
        elif type(module) is nn.AvgPool2d:
            module.register_forward_pre_hook(self._fill_zeros)
            if not module.count_include_pad:
                module.register_forward_hook(self._rescale_average)
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            _MaskedBatchNorm(self, module)
        elif type(module) in _SQUEEZE_LAYERS and not getattr(module, "add_maxpool", False):
            _MaskedMean(self, module)
        else:
            is_positionwise = isinstance(module, _POSITIONWISE) or type(module).__module__ in _ACTIVATIONS
            # nn.MultiheadAttention is in the module of the activations; empty containers do nothing
            return (is_positionwise and not isinstance(module, nn.MultiheadAttention)) or _is_empty(module)
        return True

    def _pass_mask(self, module: nn.Module, inputs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        mask = self.mask(inputs[0])
        return None if mask is None else (inputs, options | {"mask": mask})

    def _fill_zeros(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (self.fill_padding(inputs[0]),)

    def _fill_min(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (self.fill_padding(inputs[0], torch.finfo(inputs[0].dtype).min),)

    def _fill_output_zeros(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return self.fill_padding(output)

    def _rescale_average(self, pool: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        mask = self.mask(inputs[0])
        if mask is None:
            return output
        valid_fraction = F.avg_pool2d(
            mask.unsqueeze(1).to(output.dtype),
            pool.kernel_size,
            pool.stride,
            pool.padding,
            pool.ceil_mode,
            count_include_pad=False,
        )
        return self.fill_padding(output / valid_fraction.clamp(min=torch.finfo(valid_fraction.dtype).tiny))


class _MaskedBatchNorm:
    """Hooks for a batch norm in training, which gather the valid positions and scatter the outputs back into maps."""

    def __init__(self, padding: Padding, norm: nn.Module) -> None:
        self._padding = padding
        self._valid_sizes: Sizes | None = None
        self._grid = (0, 0)
        norm.register_forward_pre_hook(self._pre_hook)
        norm.register_forward_hook(self._post_hook)

    def _pre_hook(self, norm: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        self._valid_sizes = self._padding.valid_sizes(inputs[0]) if norm.training else None
        if self._valid_sizes is None:
            return inputs
        self._grid = (inputs[0].shape[-2], inputs[0].shape[-1])
        return (_Gather.apply(inputs[0], self._valid_sizes, _memory_format(inputs[0])),)

    def _post_hook(self, norm: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output if self._valid_sizes is None else _Scatter.apply(output, self._valid_sizes, self._grid)


class _MaskedMean:
    """Hooks for squeeze-and-excitation, which restrict its mean to the valid positions."""

    def __init__(self, padding: Padding, excitation: nn.Module) -> None:
        self._padding = padding
        self._mask: Tensor | None = None
        excitation.register_forward_pre_hook(self._pre_hook)
        getattr(excitation, _SQUEEZE_LAYERS[type(excitation)]).register_forward_pre_hook(self._rescale_mean)

    def _pre_hook(self, excitation: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        self._mask = self._padding.mask(inputs[0])
        return (self._padding.fill_padding(inputs[0]),)

    def _rescale_mean(self, squeeze: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        if self._mask is None:
            return inputs
        valid_fraction = self._mask.flatten(1).to(inputs[0].dtype).mean(1)
        return (inputs[0] / valid_fraction[:, None, None, None],)


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
