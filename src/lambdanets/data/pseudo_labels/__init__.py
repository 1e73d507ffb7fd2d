"""Pseudo-label tables: read, write, rank and select labels, and join them with the student's training images."""
