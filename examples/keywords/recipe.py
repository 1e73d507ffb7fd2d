"""Keyword spotting on synthetic tones; accuracy above 95% after a minute on one CPU core.

Run: lambdanets train examples/keywords/recipe.py --run runs/keywords
"""

from keyword_task import KeywordRecipe

from lambdanets.registry import TASKS, TaskEntry

TASKS["keywords"] = TaskEntry(
    recipe="keyword_task:KeywordRecipe",
    implementation="keyword_task:KeywordTask",
    predictor="keyword_task:KeywordSpotter",
)

recipe = KeywordRecipe(epochs=15, batch_size=32, learning_rate=0.005, optimizer="adamw", warmup_epochs=1.0)
