"""Lambda layers as nn.Modules: on grids channels first like torch.nn.Conv*d, on tokens channels last like Linear."""

from lambdanets.layers.base import LambdaBase
from lambdanets.layers.decoding import DecodingState, decode_step, start_decoding
from lambdanets.layers.embeddings import DenseEmbedding, EdgeEmbedding, RelativeEmbedding
from lambdanets.layers.lambda_layer import GridLambdaLayer, LambdaLayer1d, LambdaLayer2d, LambdaLayer3d
from lambdanets.layers.token_layer import LambdaLayer

__all__ = [
    "DecodingState",
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
