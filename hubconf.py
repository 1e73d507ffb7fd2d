"""Entry points for torch.hub: every model of this package by name, and `load`, `create_model`, `mask_rcnn`.

model = torch.hub.load("OWNER/lambdanets", "lambda_resnet50", num_classes=10)
classifier = torch.hub.load("OWNER/lambdanets", "load", "hf-hub:USER/NAME")
"""

import sys
from pathlib import Path

dependencies = ["torch", "torchvision", "timm", "safetensors", "numpy", "PIL", "tifffile", "pydantic", "psutil"]
dependencies += ["filelock", "tqdm"]

sys.path[:0] = [str(Path(__file__).parent / folder) for folder in ("src", "lab")]

from timm.models import model_entrypoint  # noqa: E402

from lambdanets import create_model, list_models, load, mask_rcnn  # noqa: E402

__all__ = ["create_model", "load", "mask_rcnn"]

globals().update({name: model_entrypoint(name) for name in list_models()})
