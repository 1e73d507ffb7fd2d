"""Image datasets: opening, reading images, and loading batches."""
