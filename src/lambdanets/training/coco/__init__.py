"""What tasks on COCO-format annotations share: fields of the recipe, opening of the data, provenance of the result."""
