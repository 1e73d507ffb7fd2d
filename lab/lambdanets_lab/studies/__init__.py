"""`lambdanets compare`: small accuracy studies that train every variant with the same recipe and seeds."""
