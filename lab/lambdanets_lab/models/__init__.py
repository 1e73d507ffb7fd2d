"""Models of the paper's other experiments, which register with timm: mixers in place of 3x3 convolutions, ResNet-RS."""

from lambdanets_lab.models import mixer_resnet, plain_resnetrs

MODELS = (*mixer_resnet.MODELS, *plain_resnetrs.MODELS)
