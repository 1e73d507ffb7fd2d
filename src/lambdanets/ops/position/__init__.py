"""The position interaction: exact algorithms with one signature, one per file, and the planner that selects one."""
