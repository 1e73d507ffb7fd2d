"""LambdaNetworks (Bello, ICLR 2021) in PyTorch: exact lambda layers of any size, the paper's models, training.

Names are imported on first use. Thus the command line can print its help without loading PyTorch, which takes seconds.
"""

from __future__ import annotations

import importlib

from lambdanets._timm import register_with_timm

__version__ = "0.1.0"

_PACKAGES = ("layers", "models", "ops")
# Public names by module.
_NAMES = {
    "lambdanets.adoption": ("adopt", "foreign_state_dict"),
    "lambdanets.inference.classifier": ("Classifier",),
    "lambdanets.inference.detector": ("Detector",),
    "lambdanets.inference.loading": ("evaluate", "load"),
    "lambdanets.inference.segmenter": ("Segmenter",),
    "lambdanets.layers": (
        *("LambdaLayer", "LambdaLayer1d", "LambdaLayer2d", "LambdaLayer3d"),
        *("RelativeEmbedding", "decode_step", "start_decoding"),
    ),
    "lambdanets.models": ("create_model", "list_models", "replace_convolutions"),
    "lambdanets.models.mask_rcnn": ("mask_rcnn",),
    "lambdanets.ops": ("lambda_interaction", "plan", "position_interaction"),
    "lambdanets_lab.explain.explanation": ("attention_map", "explain"),
    "lambdanets_lab.export.export": ("export",),
    "lambdanets_lab.export.hub": ("push_to_hub", "save_pretrained"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

TYPE_CHECKING = False  # type checkers know this name; importing it from typing would slow down the command line
if TYPE_CHECKING:
    from lambdanets import layers as layers
    from lambdanets import models as models
    from lambdanets import ops as ops
    from lambdanets.adoption import adopt as adopt
    from lambdanets.adoption import foreign_state_dict as foreign_state_dict
    from lambdanets.inference.classifier import Classifier as Classifier
    from lambdanets.inference.detector import Detector as Detector
    from lambdanets.inference.loading import evaluate as evaluate
    from lambdanets.inference.loading import load as load
    from lambdanets.inference.segmenter import Segmenter as Segmenter
    from lambdanets.layers import LambdaLayer as LambdaLayer
    from lambdanets.layers import LambdaLayer1d as LambdaLayer1d
    from lambdanets.layers import LambdaLayer2d as LambdaLayer2d
    from lambdanets.layers import LambdaLayer3d as LambdaLayer3d
    from lambdanets.layers import RelativeEmbedding as RelativeEmbedding
    from lambdanets.layers import decode_step as decode_step
    from lambdanets.layers import start_decoding as start_decoding
    from lambdanets.models import create_model as create_model
    from lambdanets.models import list_models as list_models
    from lambdanets.models import replace_convolutions as replace_convolutions
    from lambdanets.models.mask_rcnn import mask_rcnn as mask_rcnn
    from lambdanets.ops import lambda_interaction as lambda_interaction
    from lambdanets.ops import plan as plan
    from lambdanets.ops import position_interaction as position_interaction
    from lambdanets_lab.explain.explanation import attention_map as attention_map
    from lambdanets_lab.explain.explanation import explain as explain
    from lambdanets_lab.export.export import export as export
    from lambdanets_lab.export.hub import push_to_hub as push_to_hub
    from lambdanets_lab.export.hub import save_pretrained as save_pretrained
else:  # type checkers need literal names here, or none
    __all__ = sorted([*_PACKAGES, *_MODULES])


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return importlib.import_module(f"lambdanets.{name}")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'lambdanets' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES, *_MODULES})


register_with_timm()
