"""Noisy Student (Xie et al. 2020): a teacher labels images, and a student learns from the confident labels."""
