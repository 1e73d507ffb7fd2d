"""Hooks that make the features of a network independent of the padding of its images.

Images of several sizes are batched by padding at the right and bottom. Convolutions then mix padding into valid
positions, and means and batch norm statistics include it. Hooks mask the padding before each operation that mixes
positions; in between, its content is arbitrary.
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

_SQUEEZE_LAYERS: dict[type[nn.Module], str] = {  # the layer after the mean, by squeeze-and-excitation module
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

Sizes = tuple[tuple[int, int], ...]  # height and width of the valid part of each image's maps


class Padding:
    """The image sizes of a batch, for hooks that mask the padding.

    `attach` adds hooks to a network; one object serves all networks of a model. `set_sizes` must be called before each
    forward pass, and is valid until the next one, so that gradient checkpointing recomputes with the same sizes.
    """

    def __init__(self) -> None:
        self._batch = (0, 0)
        self._sizes: Sequence[tuple[int, int]] | None = None
        self._valid_sizes: dict[tuple[int, int], Sizes] = {}
        self._masks: dict[tuple[int, int], Tensor] = {}

    def set_sizes(self, sizes: Sequence[tuple[int, int]] | None, batch: tuple[int, int]) -> None:
        """sizes: height and width of each image; None if there is no padding. batch: height and width of the batch."""
        no_padding = sizes is None or all(tuple(size) == tuple(batch) for size in sizes)
        self._batch, self._sizes = batch, None if no_padding else sizes
        self._valid_sizes, self._masks = {}, {}

    def valid_sizes(self, maps: Tensor) -> Sizes | None:
        """Height and width of the valid part of each of the maps (b, ..., h, w); None if no image is padded.

        The sides of the maps are those of the batch, and those of the valid part those of the image, divided by the
        same power of two and rounded up.
        """
        if self._sizes is None:
            return None
        grid = (maps.shape[-2], maps.shape[-1])
        if grid not in self._valid_sizes:
            if len(self._sizes) != len(maps):
                raise InputError(f"maps must be of {len(self._sizes)} images, as given to set_sizes, got {len(maps)}")
            rows, columns = (_stride(side, small) for side, small in zip(self._batch, grid, strict=True))
            self._valid_sizes[grid] = tuple((_ceil_div(h, rows), _ceil_div(w, columns)) for h, w in self._sizes)
        return self._valid_sizes[grid]

    def mask(self, maps: Tensor) -> Tensor | None:
        """(b, h, w) bool for maps (b, ..., h, w), True at valid positions; None if no image is padded."""
        valid_sizes = self.valid_sizes(maps)
        if valid_sizes is None:
            return None
        grid = (maps.shape[-2], maps.shape[-1])
        if grid not in self._masks:
            rows, columns = (torch.arange(side) < torch.tensor(valid_sizes)[:, i, None] for i, side in enumerate(grid))
            self._masks[grid] = (rows[:, :, None] & columns[:, None, :]).to(maps.device)
        return self._masks[grid]

    def fill_padding(self, maps: Tensor, value: float = 0.0) -> Tensor:
        """The maps (b, c, h, w) with the padding filled with a value."""
        valid_sizes = self.valid_sizes(maps)
        return maps if valid_sizes is None else _Fill.apply(maps, valid_sizes, value)

    def replicate_border(self, maps: Tensor) -> Tensor:
        """The maps (b, c, h, w) with the last valid row and column replicated into the padding."""
        valid_sizes = self.valid_sizes(maps)
        if valid_sizes is None:
            return maps
        parts = []
        for image, (height, width) in zip(maps, valid_sizes, strict=True):
            pads = (0, maps.shape[-1] - width, 0, maps.shape[-2] - height)
            parts.append(F.pad(image[None, :, :height, :width], pads, mode="replicate"))
        return torch.cat(parts)

    def attach(self, network: nn.Module) -> None:
        """Add hooks to a network, after which its outputs at valid positions do not depend on padding, up to rounding.

        In evaluation they equal those of each image alone; in training, batch norm counts the valid positions of all
        images. Lambda layers get the mask, which excludes padding from the softmax of keys and from the position term.
        Raises InputError naming a layer of an unsupported type, such as attention.
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
        """Add the hooks of a module; False if its children need hooks."""
        if isinstance(module, LambdaLayer2d):
            module.register_forward_pre_hook(self._pass_mask, with_kwargs=True)
        elif isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
            if max(module.kernel_size) > 1:
                module.register_forward_pre_hook(self._fill_zeros)
        elif type(module) is nn.MaxPool2d:
            module.register_forward_pre_hook(self._fill_lowest)
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
            # MultiheadAttention is in the activation module; empty containers do nothing
            return (is_positionwise and not isinstance(module, nn.MultiheadAttention)) or _is_empty(module)
        return True

    def _pass_mask(self, module: nn.Module, inputs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        mask = self.mask(inputs[0])
        return None if mask is None else (inputs, options | {"mask": mask})

    def _fill_zeros(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (self.fill_padding(inputs[0]),)

    def _fill_lowest(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
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
    """Hooks for a batch norm in training: gather the valid positions, and scatter the outputs back into maps."""

    def __init__(self, padding: Padding, norm: nn.Module) -> None:
        self._padding = padding
        self._valid_sizes: Sizes | None = None
        self._grid = (0, 0)
        norm.register_forward_pre_hook(self._before)
        norm.register_forward_hook(self._after)

    def _before(self, norm: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        self._valid_sizes = self._padding.valid_sizes(inputs[0]) if norm.training else None
        if self._valid_sizes is None:
            return inputs
        self._grid = (inputs[0].shape[-2], inputs[0].shape[-1])
        return (_Gather.apply(inputs[0], self._valid_sizes, _layout(inputs[0])),)

    def _after(self, norm: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output if self._valid_sizes is None else _Scatter.apply(output, self._valid_sizes, self._grid)


class _MaskedMean:
    """Hooks for squeeze-and-excitation: take the mean over the valid positions."""

    def __init__(self, padding: Padding, excitation: nn.Module) -> None:
        self._padding = padding
        self._mask: Tensor | None = None
        excitation.register_forward_pre_hook(self._before)
        getattr(excitation, _SQUEEZE_LAYERS[type(excitation)]).register_forward_pre_hook(self._scale)

    def _before(self, excitation: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        self._mask = self._padding.mask(inputs[0])
        return (self._padding.fill_padding(inputs[0]),)

    def _scale(self, squeeze: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        if self._mask is None:
            return inputs
        valid_fraction = self._mask.flatten(1).to(inputs[0].dtype).mean(1)
        return (inputs[0] / valid_fraction[:, None, None, None],)


class _Gather(torch.autograd.Function):
    """Maps (b, c, h, w) to their valid positions (1, c, positions of all images, 1), in a memory format."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, sizes: Sizes, layout: torch.memory_format) -> Tensor:
        ctx.sizes, ctx.grid = sizes, maps.shape[-2:]
        count = sum(height * width for height, width in sizes)
        gathered = torch.empty(1, maps.shape[1], count, 1, dtype=maps.dtype, device=maps.device, memory_format=layout)
        for image, part, (height, width) in zip(maps, _parts(gathered, sizes), sizes, strict=True):
            part.copy_(image[:, :height, :width])
        return gathered

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return _Scatter.apply(grad_output, ctx.sizes, ctx.grid), None, None


class _Scatter(torch.autograd.Function):
    """The inverse of `_Gather`, with zeros in the padding."""

    @staticmethod
    def forward(ctx: Any, gathered: Tensor, sizes: Sizes, grid: tuple[int, int]) -> Tensor:
        ctx.sizes, ctx.layout = sizes, _layout(gathered)
        maps = torch.empty(
            len(sizes),
            gathered.shape[1],
            *grid,
            dtype=gathered.dtype,
            device=gathered.device,
            memory_format=ctx.layout,
        )
        for image, part, (height, width) in zip(maps, _parts(gathered, sizes), sizes, strict=True):
            image[:, :height, :width] = part
        return _fill(maps, sizes, 0.0)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return _Gather.apply(grad_output, ctx.sizes, ctx.layout), None, None


class _Fill(torch.autograd.Function):
    """Fill the padding of maps with a value; the gradient there is 0."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, sizes: Sizes, value: float) -> Tensor:
        ctx.sizes = sizes
        return _fill(maps.clone(), sizes, value)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        return _Fill.apply(grad_output, ctx.sizes, 0.0), None, None


def _parts(gathered: Tensor, sizes: Sizes) -> list[Tensor]:
    """Views (c, h, w) of each image in the gathered tensor (1, c, positions of all images, 1)."""
    parts = gathered[0, :, :, 0].split([height * width for height, width in sizes], dim=1)
    return [part.unflatten(1, size) for part, size in zip(parts, sizes, strict=True)]


def _layout(maps: Tensor) -> torch.memory_format:
    last = not maps.is_contiguous() and maps.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _fill(maps: Tensor, sizes: Sizes, value: float) -> Tensor:
    """Fill the padding with a value, in place."""
    for image, (height, width) in zip(maps, sizes, strict=True):
        image[:, height:].fill_(value)
        image[:, :height, width:].fill_(value)
    return maps


def _is_empty(module: nn.Module) -> bool:
    """Whether a module is an empty container, such as an identity shortcut."""
    return isinstance(module, nn.Sequential | nn.ModuleList) and not len(module)


def _ceil_div(side: int, stride: int) -> int:
    return -(-side // stride)


def _stride(side: int, small: int) -> int:
    """The smallest power-of-two stride that downsamples `side` to at most `small`."""
    stride = 1
    while _ceil_div(side, stride) > small:
        stride *= 2
    return stride
