"""Training with Lightning: recipes, tasks, callbacks, checkpoints and the run folder."""
