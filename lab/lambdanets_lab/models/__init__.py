"""Models of the paper's other experiments. Importing this package registers them with timm."""

from lambdanets_lab.models import mobilenetv2_lambda, resnets

__all__ = ["mobilenetv2_lambda", "resnets"]
