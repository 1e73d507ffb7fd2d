"""LambdaNetworks (Bello, ICLR 2021) in PyTorch: exact lambda layers of any size, the paper's models, training.

Operations and layers load at once; models, which need timm, on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lambdanets._timm import register_with_timm
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
from lambdanets.ops import content_lambda, explain, lambda_interaction, position_interaction, resize_table

if TYPE_CHECKING:
    from lambdanets.calibration import calibrate
    from lambdanets.models import create_model, list_models, replace_convolutions

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
    "list_models",
    "position_interaction",
    "replace_convolutions",
    "resize_table",
    "start_decoding",
]

_ON_FIRST_USE = {
    "calibrate": "lambdanets.calibration",
    "create_model": "lambdanets.models",
    "list_models": "lambdanets.models",
    "replace_convolutions": "lambdanets.models",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'lambdanets' has no attribute {name!r}")
    return getattr(importlib.import_module(_ON_FIRST_USE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_ON_FIRST_USE])


register_with_timm()
