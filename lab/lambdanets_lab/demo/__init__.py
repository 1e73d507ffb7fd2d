"""The page of `lambdanets demo`: what trained models see in an image, and what a lambda layer costs."""
