"""The tasks of training: recipe, data, model, losses."""
