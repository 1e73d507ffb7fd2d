"""timm's ResNet with replaceable 3x3 convolutions: the base class of LambdaResNets and of the baseline networks.

Stages are called c2, c3, c4 and c5, as in the paper; in timm's ResNet they are layer1 to layer4.
"""

from collections.abc import Callable, Sequence
from typing import Any

from timm.models.resnet import Bottleneck, ResNet
from torch import nn

from lambdanets.errors import InputError
from lambdanets.models.surgery import replace_convolutions

STAGES = ("c2", "c3", "c4", "c5")

Blocks = Sequence[Sequence[int]]  # blocks of each of c2 to c5, counted from 1


class ResNetBase(ResNet):
    """timm's ResNet, with a method that replaces 3x3 convolutions after construction.

    It supports features_only, reset_classifier and gradient checkpointing.

    Args:
        small_images: use a 3x3 stem with stride 1 and without pooling, for images of about 32 pixels; default False.
        resnet: arguments of timm's ResNet.
    """

    conv1: nn.Module
    feature_info: list[dict[str, Any]]

    def __init__(self, *, small_images: bool = False, **resnet: Any) -> None:
        super().__init__(**resnet)
        if small_images:
            self._replace_stem()

    def stages(self) -> list[Any]:
        """Return the stages c2 to c5, each a sequence of blocks."""
        return [self.layer1, self.layer2, self.layer3, self.layer4]

    def replace(self, blocks: Blocks, make_layer: Callable[[nn.Conv2d], nn.Module]) -> None:
        """Replace the 3x3 convolution of each of these blocks by make_layer(convolution)."""
        names = [f"layer{stage}.{block - 1}.conv2" for stage, numbers in enumerate(blocks, 1) for block in numbers]
        if names:
            replace_convolutions(self, make_layer, names)

    def _replace_stem(self) -> None:
        first = next(module for module in self.conv1.modules() if isinstance(module, nn.Conv2d))
        factory_kwargs: dict[str, Any] = {"device": first.weight.device, "dtype": first.weight.dtype}
        self.conv1 = nn.Conv2d(first.in_channels, self.bn1.num_features, 3, padding=1, bias=False, **factory_kwargs)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.maxpool = nn.Identity()
        # the default stem and its pooling have stride 2 each
        self.feature_info = [info | {"reduction": max(info["reduction"] // 4, 1)} for info in self.feature_info]

    def no_weight_decay(self) -> set[str]:
        """Return the names of the embedding tables, which timm's optimizers then exclude from weight decay."""
        return {name for name, _ in self.named_parameters() if name.endswith("table")}


RESNET_50: dict[str, Any] = {"block": Bottleneck, "layers": (3, 4, 6, 3)}

# ResNet-RS of any depth, without squeeze-and-excitation.
RESNET_RS: dict[str, Any] = {
    "block": Bottleneck,
    "stem_width": 32,
    "stem_type": "deep",
    "replace_stem_pool": True,
    "avg_down": True,
}

# For images of about 32 pixels: a quarter of the usual width, c2 at full resolution, without squeeze-and-excitation.
SMALL_RESNET_20: dict[str, Any] = {
    "block": Bottleneck,
    "layers": (1, 2, 2, 1),
    "channels": (16, 32, 64, 128),
    "stem_width": 16,
    "stem_type": "deep",
    "avg_down": True,
    "small_images": True,
}
SMALL_BLOCKS = ((), (), (2,), (1,))
SMALL_CFG: dict[str, Any] = {"input_size": (3, 32, 32), "pool_size": (4, 4), "crop_pct": 1.0, "first_conv": "conv1"}


def all_blocks(blocks: int) -> tuple[int, ...]:
    return tuple(range(1, blocks + 1))


def parse_pattern(pattern: str, layers: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the blocks of c2 to c5 for a pattern like "CCLL": all blocks of the stages with an L.

    layers: number of blocks of each stage. Raises ValueError unless the pattern consists of four letters C or L.
    """
    letters = pattern.upper().replace("-", "") if isinstance(pattern, str) else ""
    if len(letters) != 4 or set(letters) - {"C", "L"}:
        raise InputError(f"pattern must be four letters, C or L for each of c2 to c5, like 'CCLL', got {pattern!r}")
    return tuple(all_blocks(n) if letter == "L" else () for letter, n in zip(letters, layers, strict=True))


def default_cfg(**changes: Any) -> dict[str, Any]:
    """Return timm's default_cfg of a model: its preprocessing, and the names of its first and last layer."""
    return {
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "first_conv": "conv1.0",
        "classifier": "fc",
        "license": "apache-2.0",
    } | changes
