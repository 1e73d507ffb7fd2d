"""Validation in training and `evaluate_detector`, with a model that returns the ground truth."""

import pytest

from lambdanets.data.coco.loader import evaluation_batches
from lambdanets.inference.detection import evaluate_detector
from lambdanets.inference.detector import Detector
from lambdanets.training.coco.data import open_datasets
from lambdanets.training.detection.model import make_model_card
from lambdanets.training.detection.module import VALIDATION_METRICS, Detection
from training.detection.oracle import Oracle
from training.detection.tiny_detection import tiny_recipe


@pytest.fixture(scope="module")
def recipe_and_images(tmp_path_factory):
    """A recipe that keeps all detections, and its training set."""
    recipe = tiny_recipe(tmp_path_factory.mktemp("validation"), max_detections=100, batch_size=3)
    return recipe, open_datasets(recipe)[0]


def make_oracle_detector(recipe, images, **options):
    categories = images.annotations.categories
    names, ids = tuple(category.name for category in categories), tuple(category.id for category in categories)
    return Detector(Oracle(images, **options), make_model_card(recipe, names, ids))


def test_an_oracle_has_an_average_precision_of_1(recipe_and_images):
    recipe, images = recipe_and_images
    evaluation = evaluate_detector(make_oracle_detector(recipe, images), images)
    assert evaluation.readable == [0, 1, 2, 3]
    objects = [instance for image in images.annotations.images for instance in image.objects if not instance.crowd]
    assert len(evaluation.results) == len(objects)
    for scores in evaluation.scores.summary().values():
        assert scores["AP"] == scores["AP50"] == scores["AP75"] == 1


def test_missed_objects_lower_the_average_precision(recipe_and_images):
    recipe, images = recipe_and_images
    scores = evaluate_detector(make_oracle_detector(recipe, images, blind=(0, 1)), images).scores.summary()
    assert 0 < scores["segm"]["AP"] < 1
    assert scores["segm"]["AP"] == pytest.approx(scores["bbox"]["AP"])


@pytest.mark.parametrize("blind", [(), (0, 1)])
def test_validation_metrics_equal_those_of_evaluate_detector(recipe_and_images, blind):
    recipe, images = recipe_and_images
    module = Detection(Oracle(images, blind), recipe, images, 1, "")
    module.log = lambda *_, **__: None  # Lightning's `log` needs a trainer
    module.on_validation_epoch_start()
    for batch_idx, batch in enumerate(evaluation_batches(images, 1)):
        module.validation_step(batch, batch_idx)
    module.on_validation_epoch_end()
    summary = evaluate_detector(make_oracle_detector(recipe, images, blind=blind), images).scores.summary()
    assert module.validation_metrics == {
        name: summary[iou_type][metric] for name, (iou_type, metric) in VALIDATION_METRICS.items()
    }
    assert f"mask AP {summary['segm']['AP']:.4f}" in module.format_validation_metrics()


def test_images_are_detected_one_at_a_time_in_any_batch_size(recipe_and_images):
    recipe, images = recipe_and_images
    detector = make_oracle_detector(recipe, images)
    evaluate_detector(detector, images)
    module = Detection(Oracle(images), recipe, images, 1, "")
    module.on_validation_epoch_start()
    for batch_idx, batch in enumerate(evaluation_batches(images, recipe.batch_size)):
        module.validation_step(batch, batch_idx)
    assert detector.model.max_batch_size == module.model.max_batch_size == 1


def test_validation_without_readable_images_has_no_metrics(recipe_and_images):
    recipe, images = recipe_and_images
    module = Detection(Oracle(images), recipe, images, 1, "")
    module.on_validation_epoch_start()
    module.on_validation_epoch_end()
    assert module.validation_metrics == {}
