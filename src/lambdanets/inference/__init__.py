"""Trained models at work: load them, predict, evaluate, draw; knows nothing of training."""
