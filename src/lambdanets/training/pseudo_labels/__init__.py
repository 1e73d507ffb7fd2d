"""Pseudo-labels: labeling images with a teacher, selecting labels, and the student's training images."""
