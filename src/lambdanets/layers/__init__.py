"""Lambda layers as nn.Modules.

Layers on grids take channels-first inputs, like torch.nn.Conv2d; the layer on tokens takes channels-last inputs, like
torch.nn.Linear.

Letters in shapes and formulas: b batch size, h heads, n query positions, m context positions, k query depth, v value
depth, u intra-depth, d input channels, r scope, S_1..S_D the sides of a grid with D dimensions.
"""

from lambdanets.layers.base import LambdaBase
from lambdanets.layers.decoding import DecodingState, DecodingStep, decode_step, start_decoding
from lambdanets.layers.embeddings import DenseEmbedding, EdgeEmbedding, RelativeEmbedding
from lambdanets.layers.lambda_layer import GridLambdaLayer, LambdaLayer1d, LambdaLayer2d, LambdaLayer3d
from lambdanets.layers.token_layer import LambdaLayer

__all__ = [
    "DecodingState",
    "DecodingStep",
    "DenseEmbedding",
    "EdgeEmbedding",
    "GridLambdaLayer",
    "LambdaBase",
    "LambdaLayer",
    "LambdaLayer1d",
    "LambdaLayer2d",
    "LambdaLayer3d",
    "RelativeEmbedding",
    "decode_step",
    "start_decoding",
]
