"""Models of the paper's other experiments. Importing this package registers them with timm."""

from lambdanets_lab.models import mixer_resnet, mobilenetv2_lambda, plain_resnetrs

__all__ = ["mixer_resnet", "mobilenetv2_lambda", "plain_resnetrs"]
