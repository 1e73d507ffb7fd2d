"""Evidence for the claims: benchmarks against baselines, the paper's tables, accuracy studies over seeds."""
