"""U-Nets for semantic segmentation, with convolutions or with lambda layers at the lowest resolutions.

Source: Ronneberger, Fischer and Brox, *U-Net: Convolutional Networks for Biomedical Image Segmentation* (MICCAI 2015).
Differences: batch norm after each convolution, and padded convolutions, so that the output has the size of the input.

`unet_small` has a quarter of the paper's channels: 16 at full resolution, 256 in the bottleneck at stride 16. It has
1.94 million parameters for two classes, and 3.0 billion multiply-adds for an image of 256 x 256. `lambda_unet_small`
has lambda layers in the bottleneck and at the two resolutions above it, in encoder and decoder: 1.11 million parameters
and 4.1 billion multiply-adds.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from timm.models import generate_default_cfgs
from torch import Tensor, nn

from lambdanets.errors import InputError
from lambdanets.layers import LambdaLayer2d
from lambdanets.models.lambda_resnet import ResNetBase, register


class UNet(nn.Module):
    """A U-Net: maps (b, in_chans, H, W) to logits (b, num_classes, H, W), for any height and width.

    The encoder has one block per resolution, with 2x2 max pooling between blocks; the last block is the bottleneck. The
    decoder has one block for each resolution except the lowest. It upsamples by a 2x2 transposed convolution and
    concatenates the encoder's map of the same resolution (skip connection) before each block, and ends with a 1x1
    convolution. A block has two 3x3 convolutions with batch norm and ReLU. At the lowest resolutions, lambda layers
    replace the second convolution of each block.

    The input is padded at the bottom and right to a multiple of `stride` by replicating its last row and column, and
    the output is cropped. With timm's features_only=True, it returns the maps of the encoder, which are not cropped.

    Args:
        in_chans: channels of the input.
        num_classes: channels of the output; 0 for the features before the last convolution, with widths[0] channels.
        widths: channels at each resolution, from the highest to the bottleneck. The total stride is 2 to the power of
            len(widths) - 1.
        lambda_stages: number of resolutions with lambda layers, counted from the bottleneck; default 0, for none.
        query_depth, heads, scope, algorithm: arguments of each `LambdaLayer2d`.
    """

    def __init__(
        self,
        *,
        in_chans: int = 3,
        num_classes: int = 2,
        widths: Sequence[int] = (16, 32, 64, 128, 256),
        lambda_stages: int = 0,
        query_depth: int = 16,
        heads: int = 4,
        scope: int = 23,
        algorithm: str = "auto",
    ) -> None:
        super().__init__()
        if len(widths) < 2 or min(widths) < 1:
            raise InputError(f"widths must be two or more positive numbers, got {tuple(widths)}")
        if not 0 <= lambda_stages <= len(widths):
            raise InputError(f"lambda_stages must be from 0 to {len(widths)}, got {lambda_stages}")

        def make_block(dim: int, level: int) -> _Block:
            width = widths[level]
            if level < len(widths) - lambda_stages:
                mixer: nn.Module = nn.Conv2d(width, width, 3, padding=1, bias=False)
            else:
                mixer = LambdaLayer2d(width, query_depth=query_depth, heads=heads, scope=scope, algorithm=algorithm)
            return _Block(dim, width, mixer)

        self.in_chans, self.num_features = in_chans, widths[0]
        self.stride = 2 ** (len(widths) - 1)
        self.feature_info = [  # of timm's features_only, by nodes of the graph: the modules are not a sequence
            {"num_chs": width, "reduction": 2**level, "module": f"encoder.{level}"}
            for level, width in enumerate(widths)
        ]
        self.pool = nn.MaxPool2d(2)
        self.encoder = nn.ModuleList(make_block(dim, level) for level, dim in enumerate((in_chans, *widths[:-1])))
        levels = range(len(widths) - 2, -1, -1)
        self.upsample = nn.ModuleList(
            nn.ConvTranspose2d(widths[level + 1], widths[level], 2, stride=2) for level in levels
        )
        self.decoder = nn.ModuleList(make_block(2 * widths[level], level) for level in levels)
        self.reset_classifier(num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")  # as in timm

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        x = F.pad(x, (0, -width % self.stride, 0, -height % self.stride), mode="replicate")
        maps: list[Tensor] = []
        for level, block in enumerate(self.encoder):
            x = block(self.pool(x) if level else x)
            maps.append(x)
        maps.pop()
        for upsample, block in zip(self.upsample, self.decoder, strict=True):
            x = block(torch.cat([maps.pop(), upsample(x)], dim=1))
        return self.head(x[..., :height, :width])

    def get_classifier(self) -> nn.Module:
        """Return the last convolution, as in timm's models."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last convolution by a randomly initialized one for another number of classes."""
        head: nn.Module = nn.Conv2d(self.num_features, num_classes, 1) if num_classes else nn.Identity()
        self.num_classes, self.head = num_classes, head.to(next(self.decoder.parameters()))

    no_weight_decay = ResNetBase.no_weight_decay


class _Block(nn.Module):
    """A 3x3 convolution and a mixer, each followed by batch norm and ReLU."""

    def __init__(self, dim: int, dim_out: int, mixer: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim_out, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(dim_out)
        self.conv2 = mixer
        self.bn2 = nn.BatchNorm2d(dim_out)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(x)), inplace=True)


_CFG = {"input_size": (3, 256, 256), "num_classes": 2, "first_conv": "encoder.0.conv1", "classifier": "head"}
_CFG |= {"license": "apache-2.0"}
default_cfgs = generate_default_cfgs({"lambda_unet_small.untrained": _CFG, "unet_small.untrained": _CFG})

for _name, _arguments in {"lambda_unet_small": {"lambda_stages": 3}, "unet_small": {}}.items():
    register(__name__, UNet, _name, _arguments, "fx")
