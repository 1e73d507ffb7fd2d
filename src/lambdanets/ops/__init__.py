"""Functional operations on tensors, without parameters. Depends only on torch, `errors` and `files`."""

from lambdanets.ops.content import content_lambda
from lambdanets.ops.geometry import resize_table
from lambdanets.ops.interaction import lambda_interaction
from lambdanets.ops.position import explain, position_interaction

__all__ = ["content_lambda", "explain", "lambda_interaction", "position_interaction", "resize_table"]
