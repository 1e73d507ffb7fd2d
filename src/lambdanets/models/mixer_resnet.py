"""The networks of Tables 3 and 4: ResNets whose 3x3 convolutions are replaced by a mixer of `layers.baselines`."""

import inspect
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import ResNet
from torch import nn

from lambdanets.errors import InputError, did_you_mean, nearest
from lambdanets.layers.baselines import MIXERS, options_of
from lambdanets.layers.baselines.channel_attention import squeeze_excitation
from lambdanets.layers.module import SYNONYMS
from lambdanets.models.lambda_resnet import FAMILY, LambdaResNet
from lambdanets.models.resnet import (
    RESNET_50,
    SMALL_BLOCKS,
    SMALL_CFG,
    SMALL_RESNET_20,
    Blocks,
    SurgicalResNet,
    blocks_of_pattern,
    default_cfg,
)


class MixerResNet(SurgicalResNet):
    """timm's ResNet with a mixer in chosen blocks.

    mixer: a name in `lambdanets.layers.baselines.MIXERS`. "convolution" does not change the network;
        "channel_attention" keeps the 3x3 convolution and adds squeeze-and-excitation before the residual sum, as timm's
        seresnet50 does.
    mixer_blocks: for c2..c5 the blocks, counted from 1, that get it. In a strided block the layer runs at the input
        resolution, followed by average pooling.
    mixer_options: options of the mixer.
    Raises TypeError for an unknown option, ValueError for an invalid one.
    """

    def __init__(
        self,
        *,
        mixer: str,
        mixer_blocks: Blocks,
        mixer_options: dict[str, Any] | None = None,
        small_images: bool = False,
        **resnet: Any,
    ) -> None:
        options = dict(mixer_options or {})
        unknown = sorted(options.keys() - set(options_of(mixer)))
        unknown += sorted(resnet.keys() - inspect.signature(ResNet).parameters.keys())
        if unknown:
            known = options_of(mixer)
            close = did_you_mean(unknown[0], known, SYNONYMS) or f"; its options are: {', '.join(known) or 'none'}"
            raise TypeError(f"mixer {mixer} has no option {', '.join(unknown)}{close}")
        super().__init__(small_images=small_images, **resnet)
        if mixer == "channel_attention":
            for stage, numbers in zip(self.stages(), mixer_blocks, strict=True):
                for block in (stage[number - 1] for number in numbers):
                    weight = block.conv3.weight
                    factory: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
                    block.se = squeeze_excitation(block.conv3.out_channels, **options, **factory)
        elif mixer != "convolution":

            def make_layer(conv: nn.Conv2d) -> nn.Module:
                # timm replaces stride by dilation for output_stride; mixers do not need the dilation
                factory = {"device": conv.weight.device, "dtype": conv.weight.dtype}
                return MIXERS[mixer](conv.in_channels, conv.out_channels, stride=conv.stride[0], **options, **factory)

            self.replace(mixer_blocks, make_layer)


default_cfgs = generate_default_cfgs(
    {
        "resnet50_mixer.untrained": default_cfg(first_conv="conv1"),
        "resnet20_mixer_small.untrained": default_cfg(**SMALL_CFG),
    }
)


DEFAULT_MIXER = "lambda"


@register_model
def resnet50_mixer(pretrained: bool = False, **overrides: Any) -> nn.Module:
    """Vanilla ResNet-50 with a mixer in the stages marked L in `pattern` (c2 to c5), by default in all (Tables 3, 4).

    mixer: a name in `lambdanets.layers.baselines.MIXERS`; "lambda", the default, makes `resnet50_lambda`.
    mixer_options: options of the mixer, which may also be keyword arguments, as in create_model("resnet50_mixer",
        mixer="local_attention", scope=5). overrides: arguments of timm's ResNet.
    Raises TypeError for an unknown argument, ValueError for an invalid one.
    """
    pattern = overrides.pop("pattern", "LLLL")
    return _build("resnet50_mixer", pretrained, blocks_of_pattern(pattern, RESNET_50["layers"]), RESNET_50, overrides)


@register_model
def resnet20_mixer_small(pretrained: bool = False, **overrides: Any) -> nn.Module:
    """`lambda_resnet20_small` with a mixer instead of its lambda layers, or in the stages marked L in `pattern`.

    Arguments as `resnet50_mixer`; mixer="lambda", the default, makes `lambda_resnet20_small`.
    """
    pattern = overrides.pop("pattern", None)
    blocks = SMALL_BLOCKS if pattern is None else blocks_of_pattern(pattern, SMALL_RESNET_20["layers"])
    arguments = SMALL_RESNET_20
    if overrides.get("mixer", DEFAULT_MIXER) == "lambda":
        arguments = FAMILY["lambda_resnet20_small"]
    return _build("resnet20_mixer_small", pretrained, blocks, arguments, overrides)


MODELS = (resnet50_mixer, resnet20_mixer_small)


def _build(
    name: str, pretrained: bool, blocks: Blocks, arguments: dict[str, Any], overrides: dict[str, Any]
) -> nn.Module:
    mixer = overrides.pop("mixer", DEFAULT_MIXER)
    if mixer not in MIXERS:
        close = nearest(mixer, MIXERS) if isinstance(mixer, str) else ""
        raise InputError(f"mixer must be one of {', '.join(MIXERS)}; got {mixer!r}{close}")
    options = overrides.pop("mixer_options", None) or {}
    if not isinstance(options, dict):
        raise InputError(f"mixer_options must be a dict of options, got {options!r}")
    duplicates = sorted(options.keys() & overrides.keys())
    if duplicates:
        raise InputError(f"mixer_options must not repeat keyword arguments, got {', '.join(duplicates)} twice")
    if mixer == "lambda":
        arguments = arguments | {"lambda_blocks": blocks} | options | overrides
        return build_model_with_cfg(LambdaResNet, name, pretrained, **arguments)
    options = options | {option: overrides.pop(option) for option in options_of(mixer) if option in overrides}
    arguments = arguments | {"mixer": mixer, "mixer_blocks": blocks, "mixer_options": options} | overrides
    return build_model_with_cfg(MixerResNet, name, pretrained, **arguments)
