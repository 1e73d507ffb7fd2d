"""Around the core: explanations, export, a page, baselines, benchmarks, the paper's tables, and accuracy studies.

`lambdanets` finds models, commands and functions of this package by name, and never imports it otherwise.
"""
