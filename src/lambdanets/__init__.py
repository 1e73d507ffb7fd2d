"""LambdaNetworks (Bello, ICLR 2021) in PyTorch: exact lambda layers of any size, the paper's models, training.

Every name is imported on first use, so that the command line answers before PyTorch, which takes seconds, is loaded.
"""

from __future__ import annotations

import importlib

from lambdanets._timm import register_with_timm

TYPE_CHECKING = False  # as type checkers know it, without the time that importing typing takes
if TYPE_CHECKING:
    from lambdanets import layers, models, ops
    from lambdanets.calibration import calibrate
    from lambdanets.layers import (
        DecodingState,
        DenseEmbedding,
        EdgeEmbedding,
        LambdaLayer,
        LambdaLayer1d,
        LambdaLayer2d,
        LambdaLayer3d,
        RelativeEmbedding,
        decode_step,
        start_decoding,
    )
    from lambdanets.models import create_model, list_models, replace_convolutions
    from lambdanets.ops import content_lambda, explain, lambda_interaction, position_interaction, resize_table

__version__ = "0.1.0"

__all__ = [
    "DecodingState",
    "DenseEmbedding",
    "EdgeEmbedding",
    "LambdaLayer",
    "LambdaLayer1d",
    "LambdaLayer2d",
    "LambdaLayer3d",
    "RelativeEmbedding",
    "calibrate",
    "content_lambda",
    "create_model",
    "decode_step",
    "explain",
    "lambda_interaction",
    "layers",
    "list_models",
    "models",
    "ops",
    "position_interaction",
    "replace_convolutions",
    "resize_table",
    "start_decoding",
]

_PACKAGES = ("layers", "models", "ops")
_MODULES = {"calibrate": "calibration", "create_model": "models", "list_models": "models"}
_MODULES |= {"replace_convolutions": "models"}
_MODULES |= dict.fromkeys(
    ("content_lambda", "explain", "lambda_interaction", "position_interaction", "resize_table"), "ops"
)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'lambdanets' has no attribute {name!r}")
    if name in _PACKAGES:
        return importlib.import_module(f"lambdanets.{name}")
    return getattr(importlib.import_module(f"lambdanets.{_MODULES.get(name, 'layers')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_with_timm()
