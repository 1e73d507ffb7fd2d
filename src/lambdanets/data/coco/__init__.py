"""Images with boxes and masks in COCO's instances format."""
