"""Image data sets: opening, reading images, and loading batches."""
