"""Benchmarks: layers, models, memory and scaling beside their rivals, checked before anything is timed."""
