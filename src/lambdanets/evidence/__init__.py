"""Benchmarks against baselines, a check of the paper's tables, and accuracy studies over several seeds."""
