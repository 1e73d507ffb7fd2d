"""Recipes of detection: a short Python file for each set-up, its promise on top, as those of classification."""
