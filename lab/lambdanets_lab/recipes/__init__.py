"""Recipes of the lab, which `lambdanets train` lists with the others."""
