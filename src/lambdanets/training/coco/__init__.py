"""Code shared by the tasks on COCO-format annotations: recipe fields, opening of the data, provenance of the result."""
