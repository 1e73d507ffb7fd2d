"""Detection recipes, one Python file each, with data, model and result in the docstring."""
