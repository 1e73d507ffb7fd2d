"""Image classification: recipe, data, model, loss."""
