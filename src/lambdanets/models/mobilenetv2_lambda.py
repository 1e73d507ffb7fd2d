"""MobileNet-v2 with lightweight lambda blocks (Sec. 5.2, Table 17), based on timm's EfficientNet."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from timm.layers import DropPath
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._efficientnet_builder import decode_arch_def
from timm.models.efficientnet import EfficientNet
from torch import Tensor, nn

from lambdanets.errors import InputError
from lambdanets.layers import LambdaLayer2d

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
# The inverted residuals that the paper replaces, of 17, counted from 1: 64 channels at 14x14 and 160 at 7x7.
LAMBDA_BLOCKS = (10, 16)


class LightweightLambdaBlock(nn.Module):
    """x + norm(W2 norm(lambda(relu6(norm(W1 x))))), all with C channels; replaces an inverted residual block.

    There is no activation after the norm of the lambda layer; the paper does not specify it. The last norm is
    zero-initialized (Appendix B).
    """

    def __init__(
        self,
        channels: int,
        *,
        query_depth: int,
        heads: int,
        scope: int,
        drop_path: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.conv_pw = nn.Conv2d(channels, channels, 1, bias=False, **factory)
        self.bn1 = nn.BatchNorm2d(channels, **factory)
        self.act1 = nn.ReLU6(inplace=True)
        self.mixer = LambdaLayer2d(channels, query_depth=query_depth, heads=heads, scope=scope, **factory)
        self.bn2 = nn.BatchNorm2d(channels, **factory)
        self.conv_pwl = nn.Conv2d(channels, channels, 1, bias=False, **factory)
        self.bn3 = nn.BatchNorm2d(channels, **factory)
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()
        for convolution in (self.conv_pw, self.conv_pwl):
            nn.init.kaiming_normal_(convolution.weight, mode="fan_out")
        nn.init.zeros_(self.bn3.weight)

    def feature_info(self, location: str) -> dict[str, Any]:
        """Required by timm: the module whose output is the feature, and its number of channels."""
        module = "conv_pwl" if location == "expansion" else ""
        return {"module": module, "num_chs": self.conv_pwl.in_channels}

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.mixer(self.act1(self.bn1(self.conv_pw(x)))))
        return x + self.drop_path(self.bn3(self.conv_pwl(y)))


class LambdaMobileNetV2(EfficientNet):
    """timm's MobileNet-v2 with chosen blocks replaced by lambda blocks.

    lambda_blocks: the replaced inverted residuals, from 1 to 17; their stride must be 1 and their channels constant.
    query_depth, heads, scope: of each `LambdaLayer2d`. The paper's "k = 32" matches its parameter counts as 32 query
        channels in total, 8 for each of 4 heads.
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
        slots = [(stage, i) for stage in stages for i in range(len(stage))]
        for number in lambda_blocks:
            if not 1 <= number <= len(slots):
                raise InputError(f"lambda_blocks must be numbers from 1 to {len(slots)}, got {tuple(lambda_blocks)}")
            stage, i = slots[number - 1]
            replaced = stage[i]
            if not replaced.has_skip:
                raise InputError(
                    f"lambda_blocks must be blocks with stride 1 and constant channels, unlike block {number}; "
                    f"got {tuple(lambda_blocks)}"
                )
            stage[i] = LightweightLambdaBlock(
                replaced.conv_pwl.out_channels,
                query_depth=query_depth,
                heads=heads,
                scope=scope,
                drop_path=getattr(replaced.drop_path, "drop_prob", 0.0),
                device=replaced.conv_pwl.weight.device,
                dtype=replaced.conv_pwl.weight.dtype,
            )

    def no_weight_decay(self) -> set[str]:
        """Names of the parameters that timm's optimizers exclude from weight decay: the embedding tables."""
        return {name for name, _ in self.named_parameters() if name.endswith(".embedding.table")}


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


@register_model
def mobilenetv2_lambda(pretrained: bool = False, **overrides: Any) -> nn.Module:
    """MobileNet-v2 with 2 lightweight lambda blocks (Table 17); overrides are LambdaMobileNetV2's arguments."""
    return build_model_with_cfg(
        LambdaMobileNetV2, "mobilenetv2_lambda", pretrained, feature_cfg={"feature_cls": "getter"}, **overrides
    )
