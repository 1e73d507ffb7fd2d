"""`lambdanets tables`: the paper's numbers next to ours, counted on the meta device or measured."""
