"""Models: surgery on networks, and the paper's families as lines of a table. Importing registers them with timm."""

from lambdanets.models.factory import create_model, list_models
from lambdanets.models.surgery import replace_convolutions

__all__ = ["create_model", "list_models", "replace_convolutions"]
