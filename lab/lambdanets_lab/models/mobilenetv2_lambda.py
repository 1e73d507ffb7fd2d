"""MobileNet-v2 with lightweight lambda blocks (Sec. 5.2 and Table 17 of the paper), based on timm's EfficientNet."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from timm.layers import DropPath
from timm.models import generate_default_cfgs
from timm.models._efficientnet_builder import decode_arch_def
from timm.models.efficientnet import EfficientNet
from torch import Tensor, nn

from lambdanets.layers import LambdaLayer2d
from lambdanets.models.lambda_resnet import ResNetBase, register

# Stages of MobileNet-v2 (Sandler et al. 2018, Table 2) in timm's notation.
_STAGES = [
    ["ds_r1_k3_s1_c16"],
    ["ir_r2_k3_s2_e6_c24"],
    ["ir_r3_k3_s2_e6_c32"],
    ["ir_r4_k3_s2_e6_c64"],
    ["ir_r3_k3_s1_e6_c96"],
    ["ir_r3_k3_s2_e6_c160"],
    ["ir_r1_k3_s1_e6_c320"],
]
# The paper replaces 2 of 17 inverted residuals, counted from 1: one with 64 channels at 14x14, one with 160 at 7x7.
LAMBDA_BLOCKS = (10, 16)


class LightweightLambdaBlock(nn.Module):
    """A residual block with a lambda layer, which replaces an inverted residual block.

    It computes x + norm(W2 norm(lambda(relu6(norm(W1 x))))), with the same number of channels throughout. The paper
    does not specify whether an activation follows the norm of the lambda layer; here there is none. The last norm is
    zero-initialized (Appendix B).
    """

    def __init__(self, channels: int, *, query_depth: int, heads: int, scope: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.conv_pw = nn.Conv2d(channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.act1 = nn.ReLU6(inplace=True)
        self.mixer = LambdaLayer2d(channels, query_depth=query_depth, heads=heads, scope=scope)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv_pwl = nn.Conv2d(channels, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        for convolution in (self.conv_pw, self.conv_pwl):
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out")
        nn.init.zeros_(self.bn3.weight)

    def feature_info(self, location: str) -> dict[str, Any]:
        """Return the module whose output is the feature, and its number of channels; timm requires this method."""
        return {"module": "", "num_chs": self.conv_pwl.in_channels}

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.mixer(self.act1(self.bn1(self.conv_pw(x)))))
        return x + self.drop_path(self.bn3(self.conv_pwl(y)))


class LambdaMobileNetV2(EfficientNet):
    """timm's MobileNet-v2 with some blocks replaced by lambda blocks.

    Args:
        lambda_blocks: inverted residuals to replace, from 1 to 17; default (10, 16), as in the paper. They must have
            stride 1 and equal numbers of input and output channels.
        query_depth, heads, scope: arguments of each `LambdaLayer2d`; default 8, 4 and 5. The paper states "k = 32",
            which agrees with its parameter counts only as 32 query channels in total, 8 for each of 4 heads.
        efficientnet: arguments of timm's EfficientNet.
    """

    blocks: nn.Sequential

    def __init__(
        self,
        *,
        lambda_blocks: Sequence[int] = LAMBDA_BLOCKS,
        query_depth: int = 8,
        heads: int = 4,
        scope: int = 5,
        **efficientnet: Any,
    ) -> None:
        arguments = {"block_args": decode_arch_def(_STAGES), "stem_size": 32, "num_features": 1280}
        super().__init__(**arguments | {"act_layer": partial(nn.ReLU6)} | efficientnet)
        stages: Any = self.blocks
        locations = [(stage, i) for stage in stages for i in range(len(stage))]
        for number in lambda_blocks:
            stage, i = locations[number - 1]
            block = stage[i]
            stage[i] = LightweightLambdaBlock(
                block.conv_pwl.out_channels,
                query_depth=query_depth,
                heads=heads,
                scope=scope,
                drop_path=getattr(block.drop_path, "drop_prob", 0.0),
            ).to(block.conv_pwl.weight)

    no_weight_decay = ResNetBase.no_weight_decay


default_cfgs = generate_default_cfgs(
    {
        "mobilenetv2_lambda.untrained": {
            "input_size": (3, 224, 224),
            "pool_size": (7, 7),
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "first_conv": "conv_stem",
            "classifier": "classifier",
            "license": "apache-2.0",
        }
    }
)

register(__name__, LambdaMobileNetV2, "mobilenetv2_lambda", {}, "getter")
