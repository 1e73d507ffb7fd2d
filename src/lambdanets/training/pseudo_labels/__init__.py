"""Pseudo-labels: label images with a teacher, select labels, and load them as training images of a student."""
