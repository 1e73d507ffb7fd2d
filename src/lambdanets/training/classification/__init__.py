"""Training of classifiers: recipe, model and task."""
