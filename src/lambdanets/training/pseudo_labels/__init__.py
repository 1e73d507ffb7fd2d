"""Labels that a teacher gives to images without any: their tables, and which of them a student learns from."""
