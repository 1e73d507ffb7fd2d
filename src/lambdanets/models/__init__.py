"""The models of the paper, and module surgery. Importing this package registers the models with timm."""

import importlib

from lambdanets.models.factory import create_model, list_models
from lambdanets.models.surgery import replace_convolutions

__all__ = ["create_model", "list_models", "replace_convolutions"]

# the last of these imports this package, so nothing may be read from it here
for _module in ("lambdanets.models.lambda_resnet", "lambdanets.models.unet", "lambdanets_lab.models"):
    importlib.import_module(_module)
