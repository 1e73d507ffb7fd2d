"""Commands for evidence, explanation and deployment; `lambdanets.cli` finds them by name."""
