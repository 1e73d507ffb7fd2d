"""Accuracy in miniature: the same recipe, budget and seeds for every variant of a network."""
