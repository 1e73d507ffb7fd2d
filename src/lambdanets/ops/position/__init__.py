"""The position interaction: exact algorithms with one signature, one per file, and the planner that selects one."""

from lambdanets.ops.position.interaction import explain, position_interaction

__all__ = ["explain", "position_interaction"]
