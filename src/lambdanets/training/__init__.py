"""Training, evaluation and prediction: data, the Lightning module, and the folder each run leaves."""
