"""Networks that do not see the padding of their images.

Images of several sizes share a batch by being padded at the right and at the bottom. A convolution then mixes what came
of the padding into the real part, a mean counts it, and so do batch norm's statistics. Hooks take it out wherever
positions are mixed, and only there: what the padding holds in between is never looked at.
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

_EXCITATIONS: dict[type[nn.Module], str] = {  # with the layer behind the mean
    SEModule: "fc1",
    LegacySEModule: "fc1",
    EffectiveSEModule: "fc",
    SqueezeExcite: "conv_reduce",
}
_ONE_BY_ONE = (  # of these, each output position has one of the input
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

Ends = tuple[tuple[int, int], ...]  # height and width of the real part of each image's maps


class Padding:
    """Where the images of a batch end, for networks that hide what lies beyond.

    `hide_in` attaches networks, all that one model has. `begins_at` says where the images end, before each pass, and
    stays until the next one, so that the recomputation of gradient checkpointing finds the same.
    """

    def __init__(self) -> None:
        self._batch = (0, 0)
        self._sizes: Sequence[tuple[int, int]] | None = None
        self._ends: dict[tuple[int, int], Ends] = {}
        self._masks: dict[tuple[int, int], Tensor] = {}

    def begins_at(self, sizes: Sequence[tuple[int, int]] | None, batch: tuple[int, int]) -> None:
        """Height and width of each image, and of the batch. None, or images as large as the batch: nothing to hide."""
        whole = sizes is None or all(tuple(size) == tuple(batch) for size in sizes)
        self._batch, self._sizes = batch, None if whole else sizes
        self._ends, self._masks = {}, {}

    def ends(self, maps: Tensor) -> "Ends | None":
        """Height and width of the real part of each of some maps (b, ..., h, w); None where no image is padded.

        The sides of maps are those of the batch, and those of the real part those of the image, both divided by a power
        of two and rounded up.
        """
        if self._sizes is None:
            return None
        grid = (maps.shape[-2], maps.shape[-1])
        if grid not in self._ends:
            if len(self._sizes) != len(maps):
                raise InputError(f"expected maps of {len(self._sizes)} images, whose sizes were given, got {len(maps)}")
            down, right = (_stride(side, small) for side, small in zip(self._batch, grid, strict=True))
            self._ends[grid] = tuple((_halved(height, down), _halved(width, right)) for height, width in self._sizes)
        return self._ends[grid]

    def mask(self, maps: Tensor) -> Tensor | None:
        """(b, h, w) bool for maps (b, ..., h, w), True at real positions; None where no image is padded."""
        ends = self.ends(maps)
        if ends is None:
            return None
        grid = (maps.shape[-2], maps.shape[-1])
        if grid not in self._masks:
            rows, columns = (torch.arange(side) < torch.tensor(ends)[:, i, None] for i, side in enumerate(grid))
            self._masks[grid] = (rows[:, :, None] & columns[:, None, :]).to(maps.device)
        return self._masks[grid]

    def without(self, maps: Tensor, value: float = 0.0) -> Tensor:
        """The maps (b, c, h, w), with a value in the padding."""
        ends = self.ends(maps)
        return maps if ends is None else _Filled.apply(maps, ends, value)

    def extended(self, maps: Tensor) -> Tensor:
        """The maps (b, c, h, w), with the last real row and column repeated in the padding."""
        ends = self.ends(maps)
        if ends is None:
            return maps
        parts = []
        for one, (height, width) in zip(maps, ends, strict=True):
            beyond = (0, maps.shape[-1] - width, 0, maps.shape[-2] - height)
            parts.append(F.pad(one[None, :, :height, :width], beyond, mode="replicate"))
        return torch.cat(parts)

    def hide_in(self, network: nn.Module) -> None:
        """Attach a network: its outputs at real positions then depend on no padding, but for rounding.

        In evaluation they are those of each image alone; in training, batch norm counts the real positions of all. A
        lambda layer takes the mask: padded keys leave its softmax, and padded values the position term.
        Raises InputError naming a layer that is not known to work so, such as attention.
        """
        modules = [("", network)]
        while modules:
            name, module = modules.pop()
            if self._attach(module):
                continue
            children = list(module.named_children())
            if not children:
                raise InputError(
                    f"padding cannot be hidden in {name or 'the network'}, a {type(module).__name__}; choose a network "
                    "of convolutions, pooling, batch norm, squeeze-and-excitation and lambda layers, or "
                    "hide_padding=False"
                )
            modules += [(f"{name}.{child}".lstrip("."), inner) for child, inner in children]

    def _attach(self, module: nn.Module) -> bool:
        """Hook what a module needs; whether nothing inside it needs more."""
        if isinstance(module, LambdaLayer2d):
            module.register_forward_pre_hook(self._give_mask, with_kwargs=True)
        elif isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
            if max(module.kernel_size) > 1:
                module.register_forward_pre_hook(self._clear)
        elif type(module) is nn.MaxPool2d:
            module.register_forward_pre_hook(self._sink)
            module.register_forward_hook(self._clear_output)
        elif type(module) is nn.AvgPool2d:
            module.register_forward_pre_hook(self._clear)
            if not module.count_include_pad:
                module.register_forward_hook(self._average_of_real)
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            _NormOfRealPositions(self, module)
        elif type(module) in _EXCITATIONS and not getattr(module, "add_maxpool", False):
            _MeanOfRealPositions(self, module)
        else:
            alone = isinstance(module, _ONE_BY_ONE) or type(module).__module__ in _ACTIVATIONS
            # a container has no say of its own here, but for activations that a sequence holds
            return (alone and not isinstance(module, nn.MultiheadAttention)) or _is_empty(module)
        return True

    def _give_mask(self, module: nn.Module, inputs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        mask = self.mask(inputs[0])
        return None if mask is None else (inputs, options | {"mask": mask})

    def _clear(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (self.without(inputs[0]),)

    def _sink(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (self.without(inputs[0], torch.finfo(inputs[0].dtype).min),)

    def _clear_output(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return self.without(output)

    def _average_of_real(self, pool: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        mask = self.mask(inputs[0])
        if mask is None:
            return output
        share = F.avg_pool2d(
            mask.unsqueeze(1).to(output.dtype),
            pool.kernel_size,
            pool.stride,
            pool.padding,
            pool.ceil_mode,
            count_include_pad=False,
        )
        return self.without(output / share.clamp(min=torch.finfo(share.dtype).tiny))


class _NormOfRealPositions:
    """Gives a batch norm in training the real positions one after the other, and puts them back into maps."""

    def __init__(self, padding: Padding, norm: nn.Module) -> None:
        self._padding = padding
        self._ends: Ends | None = None
        self._grid = (0, 0)
        norm.register_forward_pre_hook(self._before)
        norm.register_forward_hook(self._after)

    def _before(self, norm: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        self._ends = self._padding.ends(inputs[0]) if norm.training else None
        if self._ends is None:
            return inputs
        self._grid = (inputs[0].shape[-2], inputs[0].shape[-1])
        return (_Gathered.apply(inputs[0], self._ends, _layout(inputs[0])),)

    def _after(self, norm: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output if self._ends is None else _Scattered.apply(output, self._ends, self._grid)


class _MeanOfRealPositions:
    """Gives squeeze-and-excitation the mean over the real positions."""

    def __init__(self, padding: Padding, excitation: nn.Module) -> None:
        self._padding = padding
        self._mask: Tensor | None = None
        excitation.register_forward_pre_hook(self._before)
        getattr(excitation, _EXCITATIONS[type(excitation)]).register_forward_pre_hook(self._scale)

    def _before(self, excitation: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        self._mask = self._padding.mask(inputs[0])
        return (self._padding.without(inputs[0]),)

    def _scale(self, squeeze: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        if self._mask is None:
            return inputs
        counted = self._mask.flatten(1).to(inputs[0].dtype).mean(1)
        return (inputs[0] / counted[:, None, None, None],)


class _Gathered(torch.autograd.Function):
    """Maps (b, c, h, w) to their real positions (1, c, positions of all, 1), in a memory format."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, ends: Ends, layout: torch.memory_format) -> Tensor:
        ctx.ends, ctx.grid = ends, maps.shape[-2:]
        count = sum(height * width for height, width in ends)
        gathered = torch.empty(1, maps.shape[1], count, 1, dtype=maps.dtype, device=maps.device, memory_format=layout)
        for one, part, (height, width) in zip(maps, _parts(gathered, ends), ends, strict=True):
            part.copy_(one[:, :height, :width])
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Scattered.apply(gradient, ctx.ends, ctx.grid), None, None


class _Scattered(torch.autograd.Function):
    """The way back, with zeros in the padding."""

    @staticmethod
    def forward(ctx: Any, gathered: Tensor, ends: Ends, grid: tuple[int, int]) -> Tensor:
        ctx.ends, ctx.layout = ends, _layout(gathered)
        maps = torch.empty(
            len(ends), gathered.shape[1], *grid, dtype=gathered.dtype, device=gathered.device, memory_format=ctx.layout
        )
        for one, part, (height, width) in zip(maps, _parts(gathered, ends), ends, strict=True):
            one[:, :height, :width] = part
        return _fill(maps, ends, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Gathered.apply(gradient, ctx.ends, ctx.layout), None, None


class _Filled(torch.autograd.Function):
    """Maps with a value in the padding, where the gradient is then 0."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, ends: Ends, value: float) -> Tensor:
        ctx.ends = ends
        return _fill(maps.clone(), ends, value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Filled.apply(gradient, ctx.ends, 0.0), None, None


def _parts(gathered: Tensor, ends: Ends) -> list[Tensor]:
    """Of each image (c, h, w), in the memory of what was gathered, (1, c, positions of all, 1)."""
    parts = gathered[0, :, :, 0].split([height * width for height, width in ends], dim=1)
    return [part.unflatten(1, end) for part, end in zip(parts, ends, strict=True)]


def _layout(maps: Tensor) -> torch.memory_format:
    last = not maps.is_contiguous() and maps.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _fill(maps: Tensor, ends: Ends, value: float) -> Tensor:
    """Put a value into the padding, in place."""
    for one, (height, width) in zip(maps, ends, strict=True):
        one[:, height:].fill_(value)
        one[:, :height, width:].fill_(value)
    return maps


def _is_empty(module: nn.Module) -> bool:
    """A container without anything in it, such as a shortcut that is none."""
    return isinstance(module, nn.Sequential | nn.ModuleList) and not len(module)


def _halved(side: int, stride: int) -> int:
    return -(-side // stride)


def _stride(side: int, small: int) -> int:
    """The least power of two that makes as few positions of a side."""
    stride = 1
    while _halved(side, stride) > small:
        stride *= 2
    return stride
