"""ResNets with a mixer in place of 3x3 convolutions (Tables 3 and 4 of the paper), and baselines of LambdaResNets.

The baselines are ResNet-RS without squeeze-and-excitation (Tables 6, 13 and 14). timm has the versions with it,
resnetrs50 to resnetrs420.
"""

import inspect
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, get_pretrained_cfg, register_model
from timm.models.resnet import ResNet
from torch import nn

from lambdanets.errors import check_choice
from lambdanets.models.lambda_resnet import (
    LAMBDA_RESNET_ARGUMENTS,
    LAMBDA_RESNET_BLOCKS,
    RESNET_50,
    RESNET_RS,
    SMALL_BLOCKS,
    SMALL_CFG,
    SMALL_RESNET_20,
    Blocks,
    LambdaResNet,
    ResNetBase,
    default_cfg,
    parse_pattern,
    register,
)
from lambdanets_lab.mixers import MIXERS, option_names
from lambdanets_lab.mixers.channel import squeeze_excitation


class MixerResNet(ResNetBase):
    """timm's ResNet with a mixer in some blocks.

    Args:
        mixer: a name in `lambdanets_lab.mixers.MIXERS`. "convolution" does not change the network.
            "channel_attention" keeps the 3x3 convolution and adds squeeze-and-excitation before the residual sum, like
            timm's seresnet50.
        mixer_blocks: for each of c2 to c5, the blocks with a mixer, counted from 1. In a block with a stride, the mixer
            runs at the input resolution and is followed by average pooling.
        mixer_options: options of the mixer, by name.
        resnet: small_images, as in `ResNetBase`, and arguments of timm's ResNet.

    Raises TypeError for an unknown option, and ValueError for an invalid value.
    """

    def __init__(self, *, mixer: str, mixer_blocks: Blocks, mixer_options: dict[str, Any], **resnet: Any) -> None:
        if unknown := sorted(resnet.keys() - {"small_images"} - inspect.signature(ResNet).parameters.keys()):
            known = ", ".join(option_names(mixer)) or "none"
            raise TypeError(f"mixer {mixer} has no option {', '.join(unknown)}; its options are: {known}")
        super().__init__(**resnet)
        if mixer == "channel_attention":
            for stage, numbers in zip(self.stages(), mixer_blocks, strict=True):
                for block in (stage[number - 1] for number in numbers):
                    attention = squeeze_excitation(block.conv3.out_channels, **mixer_options)
                    block.se = attention.to(block.conv3.weight)
        elif mixer != "convolution":

            def make_layer(conv: nn.Conv2d) -> nn.Module:
                # timm replaces stride by dilation for output_stride; mixers do not need the dilation
                return MIXERS[mixer](conv.in_channels, conv.out_channels, stride=conv.stride[0], **mixer_options)

            self.replace(mixer_blocks, make_layer)


_PREPROCESSING_FIELDS = ("input_size", "pool_size", "crop_pct", "test_input_size", "interpolation")

default_cfgs = generate_default_cfgs(
    {
        "resnet50_mixer.untrained": default_cfg(first_conv="conv1"),
        "resnet20_mixer_small.untrained": default_cfg(**SMALL_CFG),
    }
    | {
        f"resnetrs{depth}_plain.untrained": default_cfg(
            **{name: getattr(get_pretrained_cfg(f"resnetrs{depth}"), name) for name in _PREPROCESSING_FIELDS}
        )
        for depth in LAMBDA_RESNET_BLOCKS
    }
)


@register_model
def resnet50_mixer(
    pretrained: bool = False, mixer: str = "lambda", pattern: str = "LLLL", **overrides: Any
) -> nn.Module:
    """ResNet-50 with a mixer in all blocks of some stages (Tables 3 and 4 of the paper).

    Args:
        mixer: a name in `lambdanets_lab.mixers.MIXERS`; default "lambda", which builds `resnet50_lambda`.
        pattern: one letter for each of the stages c2 to c5: L for the mixer, C for convolutions; default "LLLL".
        overrides: options of the mixer, as in create_model("resnet50_mixer", mixer="local_attention", scope=5), and
            arguments of timm's ResNet.

    Raises TypeError for an unknown argument, and ValueError for an invalid value.
    """
    blocks = parse_pattern(pattern, overrides.get("layers", RESNET_50["layers"]))
    return _build("resnet50_mixer", pretrained, mixer, blocks, RESNET_50, overrides)


@register_model
def resnet20_mixer_small(
    pretrained: bool = False, mixer: str = "lambda", pattern: str | None = None, **overrides: Any
) -> nn.Module:
    """`lambda_resnet20_small` with another mixer in place of its lambda layers.

    The arguments are those of `resnet50_mixer`, except that the default pattern is None, for the blocks of
    `lambda_resnet20_small` that have a lambda layer. mixer="lambda", the default, builds `lambda_resnet20_small`.
    """
    arguments = LAMBDA_RESNET_ARGUMENTS["lambda_resnet20_small"] if mixer == "lambda" else SMALL_RESNET_20
    layers = overrides.get("layers", arguments["layers"])
    blocks = SMALL_BLOCKS if pattern is None else parse_pattern(pattern, layers)
    return _build("resnet20_mixer_small", pretrained, mixer, blocks, arguments, overrides)


def _build(
    name: str, pretrained: bool, mixer: str, blocks: Blocks, arguments: dict[str, Any], overrides: dict[str, Any]
) -> nn.Module:
    check_choice("mixer", mixer, MIXERS)
    if mixer == "lambda":
        arguments = arguments | {"lambda_blocks": blocks} | overrides
        return build_model_with_cfg(LambdaResNet, name, pretrained, **arguments)
    options = {option: overrides.pop(option) for option in option_names(mixer) if option in overrides}
    arguments = arguments | {"mixer": mixer, "mixer_blocks": blocks, "mixer_options": options} | overrides
    return build_model_with_cfg(MixerResNet, name, pretrained, **arguments)


for _depth, (_layers, _) in LAMBDA_RESNET_BLOCKS.items():  # without squeeze-and-excitation
    register(__name__, ResNet, f"resnetrs{_depth}_plain", RESNET_RS | {"layers": _layers})
