"""What the tasks on COCO-format annotations share: recipe fields and data."""
