import numpy as np
import torch
from pycocotools import mask as masks

from lambdanets.inference.coco_scores import coco_results
from lambdanets.inference.detections import Detections


def random_detections(count=3, height=7, width=5):
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(count, 4, generator=generator)
    return {
        "boxes": torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:]], 1),
        "labels": torch.tensor([2, 1, 2]).repeat(count)[:count],
        "scores": torch.rand(count, generator=generator),
        "masks": torch.rand(count, 1, height, width, generator=generator),
    }


def to_results(outputs):
    return coco_results(Detections.from_outputs(outputs, ("a", "b")), 11, [4, 9])


def test_masks_are_thresholded_at_one_half():
    detections = random_detections()
    detections["masks"][0, 0, 0] = torch.tensor([0.5, 0.50001, 0.49999, 0, 1])
    for result, mask in zip(to_results(detections), detections["masks"], strict=True):
        assert result["segmentation"]["size"] == [7, 5]
        assert isinstance(result["segmentation"]["counts"], str)
        assert np.array_equal(masks.decode([result["segmentation"]])[..., 0], (mask[0] > 0.5).numpy())


def test_encoding_of_cropped_masks_is_that_of_pycocotools():
    detections = random_detections(40, 31, 23)
    probabilities = detections["masks"]
    probabilities[0] = 0
    probabilities[1] = 1
    for mask, (top, left) in zip(probabilities[2:20], torch.randint(1, 12, (18, 2)).tolist(), strict=True):
        mask[:, :top] = mask[:, -top:] = 0
        mask[:, :, :left] = mask[:, :, -left // 2 :] = 0
    for result, mask in zip(to_results(detections), probabilities, strict=True):
        expected = masks.encode(np.asfortranarray((mask[0] > 0.5).numpy().astype(np.uint8)))
        assert result["segmentation"] == {"size": [31, 23], "counts": expected["counts"].decode()}


def test_boxes_labels_and_scores_become_coco_results_exactly():
    detections = random_detections()
    results = to_results(detections)
    assert [result["category_id"] for result in results] == [9, 4, 9]
    assert {result["image_id"] for result in results} == {11}
    assert torch.equal(torch.tensor([result["score"] for result in results]), detections["scores"])
    boxes = torch.tensor([result["bbox"] for result in results])
    assert torch.equal(boxes[:, :2], detections["boxes"][:, :2])
    assert torch.equal(boxes[:, 2:], detections["boxes"][:, 2:] - detections["boxes"][:, :2])
