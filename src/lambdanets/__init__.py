"""LambdaNetworks (Bello, ICLR 2021) in PyTorch: exact lambda layers of any size, the paper's models, training.

Names are imported on first use. Thus the command line can print its help without loading PyTorch, which takes seconds.
"""

from __future__ import annotations

import importlib

from lambdanets._timm import register_with_timm

TYPE_CHECKING = False  # type checkers know this name; importing it from typing would slow down the command line
if TYPE_CHECKING:
    from lambdanets import layers, models, ops
    from lambdanets.adoption import adopt, foreign_state_dict
    from lambdanets.inference.classifier import Classifier
    from lambdanets.inference.detector import Detector
    from lambdanets.inference.evaluation import evaluate
    from lambdanets.inference.hub import push_to_hub, save_pretrained
    from lambdanets.inference.loading import load
    from lambdanets.inference.segmenter import Segmenter
    from lambdanets.layers import (
        LambdaLayer,
        LambdaLayer1d,
        LambdaLayer2d,
        LambdaLayer3d,
        RelativeEmbedding,
        decode_step,
        start_decoding,
    )
    from lambdanets.models import create_model, list_models, replace_convolutions
    from lambdanets.models.mask_rcnn import mask_rcnn
    from lambdanets.ops import lambda_interaction, plan, position_interaction
    from lambdanets_lab.explain.explanation import attention_map, explain
    from lambdanets_lab.export.export import export

__version__ = "0.1.0"

__all__ = [
    "Classifier",
    "Detector",
    "LambdaLayer",
    "LambdaLayer1d",
    "LambdaLayer2d",
    "LambdaLayer3d",
    "RelativeEmbedding",
    "Segmenter",
    "adopt",
    "attention_map",
    "create_model",
    "decode_step",
    "evaluate",
    "explain",
    "export",
    "foreign_state_dict",
    "lambda_interaction",
    "layers",
    "list_models",
    "load",
    "mask_rcnn",
    "models",
    "ops",
    "plan",
    "position_interaction",
    "push_to_hub",
    "replace_convolutions",
    "save_pretrained",
    "start_decoding",
]

_PACKAGES = ("layers", "models", "ops")
# Modules of the public names. Names that are not listed are in `lambdanets.layers`.
_MODULES = {
    "Classifier": ".inference.classifier",
    "Detector": ".inference.detector",
    "Segmenter": ".inference.segmenter",
    "evaluate": ".inference.evaluation",
    "export": "lambdanets_lab.export.export",
    "load": ".inference.loading",
    "mask_rcnn": ".models.mask_rcnn",
    **dict.fromkeys(("push_to_hub", "save_pretrained"), ".inference.hub"),
    **dict.fromkeys(("attention_map", "explain"), "lambdanets_lab.explain.explanation"),
    **dict.fromkeys(("adopt", "foreign_state_dict"), ".adoption"),
    **dict.fromkeys(("create_model", "list_models", "replace_convolutions"), ".models"),
    **dict.fromkeys(("lambda_interaction", "plan", "position_interaction"), ".ops"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'lambdanets' has no attribute {name!r}")
    if name in _PACKAGES:
        return importlib.import_module(f"lambdanets.{name}")
    return getattr(importlib.import_module(_MODULES.get(name, ".layers"), __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_with_timm()
