"""Losses and scores of a detector: a model that returns the ground truth, one image learned, gradients of parts."""

import pytest
import torch
from torch import nn

from lambdanets.data.batches import Batch
from lambdanets.inference.detector import DetectionEvaluator, Detector
from lambdanets.inference.model_card import DetectorCard, make_card
from lambdanets.tasks.detection import DetectionTask, build_model
from lambdanets.training.module import TrainingModule
from training.detection.oracle import Oracle
from training.detection.tiny_detection import tiny_recipe
from training.runs import task_with


@pytest.fixture(scope="module")
def recipe_and_images(tmp_path_factory):
    """A recipe that keeps all detections, and its training set."""
    recipe = tiny_recipe(tmp_path_factory.mktemp("validation"), max_detections=100, batch_size=3)
    return recipe, DetectionTask(recipe).training


def evaluate_oracle(recipe, images, **options):
    categories = images.annotations.categories
    names, ids = tuple(category.name for category in categories), tuple(category.id for category in categories)
    card = make_card(DetectorCard, recipe, names, category_ids=ids)
    return DetectionEvaluator(Detector(Oracle(images, **options), card), images).evaluate()


def test_an_oracle_has_an_average_precision_of_1(recipe_and_images):
    recipe, images = recipe_and_images
    evaluation = evaluate_oracle(recipe, images)
    assert evaluation.readable == [0, 1, 2, 3]
    objects = [instance for image in images.annotations.images for instance in image.objects if not instance.crowd]
    assert len(evaluation.results) == len(objects)
    for scores in evaluation.scores.summary().values():
        assert scores["AP"] == scores["AP50"] == scores["AP75"] == 1


def test_validation_metrics_equal_those_of_evaluate(recipe_and_images):
    recipe, images = recipe_and_images
    task = task_with(DetectionTask, recipe, Oracle(images, blind=(0, 1)))
    task.validation = images
    module = TrainingModule(task, recipe, 1)
    module.on_validation_epoch_start()
    for batch_idx, batch in enumerate(task.evaluator(recipe, images).batches(task.EVALUATION_BATCH_SIZE)):
        module.validation_step(batch, batch_idx)
    module.on_validation_epoch_end()
    metrics = evaluate_oracle(recipe, images, blind=(0, 1)).metrics()
    assert module.validation_metrics == metrics
    assert 0 < metrics["segm_AP"] < 1
    assert f"segm_AP {metrics['segm_AP']:.4f}" in module.validation_summary
    assert module.model.max_batch_size == 1  # rounding would depend on the size of a batch


def test_gradients_of_equal_images_do_not_depend_on_micro_batches(tmp_path):
    """Each loss is a mean over the regions sampled in a micro-batch, whose number depends on the images.

    Here all images are equal, and all regions are sampled: all 252 anchors (up to 256 are sampled) and all 12 proposals
    (up to a quarter of 64 may be objects).
    """
    recipe = tiny_recipe(tmp_path, image_size=16, proposals=10, sampled_regions=64, drop_path=0.0)
    torch.manual_seed(0)
    model = build_model(recipe, 10).double().train()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.eval()
    task = task_with(DetectionTask, recipe, model)
    masks = torch.zeros(2, 16, 16, dtype=torch.uint8)
    masks[0, 2:9, 3:10] = masks[1, 7:15, 1:6] = 1
    boxes = torch.tensor([[3.0, 2.0, 10.0, 9.0], [1.0, 7.0, 6.0, 15.0]], dtype=torch.float64)
    target = {"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": masks}
    image = torch.rand(3, 16, 16, dtype=torch.float64)
    gradients = []
    for sizes in ((2,), (1, 1)):
        model.zero_grad()
        for size in sizes:
            batch = Batch([image] * size, [target] * size, torch.arange(size), [], 2)
            task.losses(batch, recipe)["loss"].backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    largest = max(gradient.abs().max() for gradient in gradients[0])
    for whole, divided in zip(*gradients, strict=True):
        assert (whole - divided).abs().max() < 1e-12 * largest
