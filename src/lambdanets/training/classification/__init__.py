"""Classification: its data, its loss, its measures and pictures."""
