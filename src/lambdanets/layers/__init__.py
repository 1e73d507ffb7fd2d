"""nn.Modules, channels first like torch.nn.Conv*d."""

from lambdanets.layers.lambda_layer import LambdaLayer2d

__all__ = ["LambdaLayer2d"]
