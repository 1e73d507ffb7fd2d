"""Functional operations without parameters. Depends only on torch and `lambdanets.errors`."""

from lambdanets.ops.content import content_lambda
from lambdanets.ops.grid import plan, position_interaction
from lambdanets.ops.pairs import lambda_interaction
from lambdanets.ops.position import torch_compile as torch_compile  # operators and FLOPs, registered before counters
from lambdanets.ops.tables import resize_table

__all__ = ["content_lambda", "lambda_interaction", "plan", "position_interaction", "resize_table"]
