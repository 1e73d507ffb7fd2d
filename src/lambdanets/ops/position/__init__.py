"""The position interaction: several exact algorithms, one per file, and the planner that chooses among them."""
