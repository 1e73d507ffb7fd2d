"""Validation in training and `evaluate`, with a model that returns the ground truth."""

import pytest

from lambdanets.inference.detector import DetectionEvaluator, Detector
from lambdanets.inference.model_card import DetectorCard, make_card
from lambdanets.tasks.coco.task import open_datasets
from lambdanets.tasks.detection.task import DetectionTask
from lambdanets.training.module import TrainingModule
from training.detection.oracle import Oracle
from training.detection.tiny_detection import tiny_recipe
from training.runs import task_with


@pytest.fixture(scope="module")
def recipe_and_images(tmp_path_factory):
    """A recipe that keeps all detections, and its training set."""
    recipe = tiny_recipe(tmp_path_factory.mktemp("validation"), max_detections=100, batch_size=3)
    return recipe, open_datasets(recipe)[0]


def evaluate_oracle(recipe, images, **options):
    categories = images.annotations.categories
    names, ids = tuple(category.name for category in categories), tuple(category.id for category in categories)
    detector = Detector(Oracle(images, **options), make_card(DetectorCard, recipe, names, category_ids=ids))
    return DetectionEvaluator(detector, images).evaluate()


def test_an_oracle_has_an_average_precision_of_1(recipe_and_images):
    recipe, images = recipe_and_images
    evaluation = evaluate_oracle(recipe, images)
    assert evaluation.readable == [0, 1, 2, 3]
    objects = [instance for image in images.annotations.images for instance in image.objects if not instance.crowd]
    assert len(evaluation.results) == len(objects)
    for scores in evaluation.scores.summary().values():
        assert scores["AP"] == scores["AP50"] == scores["AP75"] == 1


def test_missed_objects_lower_the_average_precision(recipe_and_images):
    recipe, images = recipe_and_images
    scores = evaluate_oracle(recipe, images, blind=(0, 1)).scores.summary()
    assert 0 < scores["segm"]["AP"] < 1
    assert scores["segm"]["AP"] == pytest.approx(scores["bbox"]["AP"])


def make_module(recipe, images, blind=()):
    model = Oracle(images, blind)
    task = task_with(DetectionTask, recipe, model)
    task.validation = images
    module = TrainingModule(task, recipe, 1)
    module.log = lambda *_, **__: None  # Lightning's `log` needs a trainer
    module.on_validation_epoch_start()
    return module


def test_validation_metrics_equal_those_of_evaluate(recipe_and_images):
    recipe, images = recipe_and_images
    module = make_module(recipe, images, blind=(0, 1))
    evaluator = module.task.evaluator(recipe, images)
    for batch_idx, batch in enumerate(evaluator.batches(module.task.EVALUATION_BATCH_SIZE)):
        module.validation_step(batch, batch_idx)
    module.on_validation_epoch_end()
    evaluation = evaluate_oracle(recipe, images, blind=(0, 1))
    assert module.validation_metrics == evaluation.metrics()
    assert f"segm_AP {evaluation.metrics()['segm_AP']:.4f}" in module.validation_summary
    assert module.model.max_batch_size == 1  # rounding would depend on the size of a batch


def test_validation_without_readable_images_has_no_metrics(recipe_and_images):
    module = make_module(*recipe_and_images)
    module.on_validation_epoch_end()
    assert module.validation_metrics == {}
