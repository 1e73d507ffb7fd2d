"""Keyword spotting on synthetic tones; accuracy above 95% after a minute on one CPU core.

Run: lambdanets train examples/keywords/recipe.py --run runs/keywords
Commands that read the run, such as lambdanets evaluate runs/keywords, find the task
after: pip install --no-deps --editable examples/keywords
"""

from keyword_task import ENTRY, KeywordRecipe

from lambdanets.registry import TASKS

TASKS["keywords"] = ENTRY

recipe = KeywordRecipe(epochs=15, batch_size=32, learning_rate=0.005, optimizer="adamw", warmup_epochs=1.0)
