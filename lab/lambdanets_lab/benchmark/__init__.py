"""`lambdanets benchmark`: speed, memory and scaling against baselines, each checked for correctness before timing."""
