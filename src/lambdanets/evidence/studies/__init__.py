"""`lambdanets compare`: small accuracy studies with the same recipe, budget and seeds for every variant."""
