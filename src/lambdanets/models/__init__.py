"""Models: surgery on networks, and the paper's families as lines of a table. Importing registers them with timm."""

from timm.models import register_notrace_module

from lambdanets.layers.module import Layer
from lambdanets.models.factory import create_model, list_models
from lambdanets.models.surgery import replace_convolutions

__all__ = ["create_model", "list_models", "replace_convolutions"]

# to torch.fx, as timm uses it, a layer is one call
register_notrace_module(Layer)
