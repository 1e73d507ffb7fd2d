"""Inference with trained models: loading, prediction, evaluation and figures. It does not import `training`."""
