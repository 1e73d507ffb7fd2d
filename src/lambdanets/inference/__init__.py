"""Inference with trained models: loading, prediction, evaluation and figures. Does not import training."""
