"""Segmentation recipes: one Python file per recipe, with data, model and result in its docstring."""
