"""Data sets of images: where they come from, how they are read, in which order they go into a model."""
