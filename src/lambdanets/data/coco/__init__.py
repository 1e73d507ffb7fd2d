"""Images with boxes and masks in the format of COCO's instances."""
