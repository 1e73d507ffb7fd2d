"""What lambda layers look at: exact attention maps, shares of content and position, receptive fields."""
