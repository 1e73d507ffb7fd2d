"""The position interaction: one exact algorithm a file, one signature, and the plan that chooses."""
