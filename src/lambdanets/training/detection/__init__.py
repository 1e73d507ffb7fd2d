"""Detection of objects with boxes and masks: results, scores by COCO's rules, and pictures of both."""
