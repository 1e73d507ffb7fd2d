"""Networks that do not see the padding of their images.

Images of several sizes share a batch by being padded at the right and at the bottom. A convolution then mixes what came
of the padding into the real part, a mean counts it, and so do batch norm's statistics. Hooks take it out wherever
positions are mixed, and only there: what the padding holds in between is never looked at.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath, FrozenBatchNormAct2d, LayerNorm2d, SEModule
from timm.models._efficientnet_blocks import SqueezeExcite
from torch import Tensor, nn
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from lambdanets.errors import InputError
from lambdanets.layers import LambdaLayer2d

_EXCITATIONS: dict[type[nn.Module], str] = {  # with the layer behind the mean
    SEModule: "fc1",
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


class Padding:
    """Where the images of a batch end, for networks that hide what lies beyond.

    `hide_in` attaches networks, all that one model has. `begins_at` says where the images end, before each pass, and
    stays until the next one, so that the recomputation of gradient checkpointing finds the same.
    """

    def __init__(self) -> None:
        self._batch = (0, 0)
        self._sizes: Sequence[tuple[int, int]] | None = None
        self._masks: dict[tuple[int, int], Tensor] = {}
        self._rows: dict[tuple[int, int], Tensor] = {}

    def begins_at(self, sizes: Sequence[tuple[int, int]] | None, batch: tuple[int, int]) -> None:
        """Height and width of each image, and of the batch. None, or images as large as the batch: nothing to hide."""
        whole = sizes is None or all(tuple(size) == tuple(batch) for size in sizes)
        self._batch, self._sizes = batch, None if whole else sizes
        self._masks, self._rows = {}, {}

    def mask(self, maps: Tensor) -> Tensor | None:
        """(b, h, w) bool for maps (b, ..., h, w), True at real positions; None where no image is padded.

        The sides of maps are those of the batch, and those of the real part those of the image, both divided by a power
        of two and rounded up.
        """
        if self._sizes is None:
            return None
        grid = (maps.shape[-2], maps.shape[-1])
        if grid not in self._masks:
            if len(self._sizes) != len(maps):
                raise InputError(f"expected maps of {len(self._sizes)} images, whose sizes were given, got {len(maps)}")
            strides = [_stride(side, small) for side, small in zip(self._batch, grid, strict=True)]
            ends = torch.tensor([[_halved(size[i], strides[i]) for i in (0, 1)] for size in self._sizes])
            rows, columns = (torch.arange(side) < ends[:, i, None] for i, side in enumerate(grid))
            self._masks[grid] = (rows[:, :, None] & columns[:, None, :]).to(maps.device)
        return self._masks[grid]

    def without(self, maps: Tensor, value: float = 0.0) -> Tensor:
        """The maps (b, c, h, w), with a value in the padding."""
        mask = self.mask(maps)
        return maps if mask is None else maps.masked_fill(~mask.unsqueeze(1), value)

    def extended(self, maps: Tensor) -> Tensor:
        """The maps (b, c, h, w), with the last real row and column repeated in the padding."""
        mask = self.mask(maps)
        if mask is None:
            return maps
        counts = torch.stack([mask[:, :, 0].sum(1), mask[:, 0].sum(1)], 1).tolist()
        parts = []
        for one, (height, width) in zip(maps, counts, strict=True):
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
            _RowsOfRealPositions(self, module)
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


class _RowsOfRealPositions:
    """Gives a batch norm in training the real positions, as rows, and puts its rows back into maps."""

    def __init__(self, padding: Padding, norm: nn.Module) -> None:
        self._padding = padding
        self._mask: Tensor | None = None
        norm.register_forward_pre_hook(self._before)
        norm.register_forward_hook(self._after)

    def _before(self, norm: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        self._mask = self._padding.mask(inputs[0]) if norm.training else None
        if self._mask is None:
            return inputs
        return (inputs[0].movedim(1, -1)[self._mask][:, :, None, None],)

    def _after(self, norm: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if self._mask is None:
            return output
        rows = output.flatten(1)
        maps = rows.new_zeros(*self._mask.shape, rows.shape[1]).index_put((self._mask,), rows)
        return maps.movedim(-1, 1)


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
