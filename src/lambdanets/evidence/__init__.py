"""What proves the claims: layers and models raced beside baselines, the paper's tables, studies over seeds."""
