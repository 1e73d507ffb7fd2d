"""The position interaction: one exact algorithm a file, one signature, and the plan that chooses."""

from lambdanets.ops.position.interaction import explain, position_interaction

__all__ = ["explain", "position_interaction"]
