from dataclasses import replace

import numpy as np
import pytest

from lambdanets.data.image_search import find_images
from lambdanets.inference import classification_evaluation
from lambdanets.inference.classification_evaluation import MAX_BATCH_SIZE, batch_size_that_fits
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.evaluation import evaluate
from lambdanets.inference.loading import load
from lambdanets_lab.pseudo.labeling import label_shards
from lambdanets_lab.shards import write_shards
from training.teachers import RECIPE, write_teacher

CLASSES = ("dark", "light")


@pytest.fixture
def classifier(two_classes, tmp_path):
    recipe = replace(RECIPE, data=str(two_classes))
    return load(write_teacher(tmp_path / "teacher", CLASSES, recipe=recipe))


@pytest.fixture
def batch_sizes(monkeypatch):
    """The sizes of the batches passed to the classifier."""
    batch_sizes = []
    classify = Classifier.logits

    def record(classifier, images):
        batch_sizes.append(len(images))
        return classify(classifier, images)

    monkeypatch.setattr(Classifier, "logits", record)
    return batch_sizes


def batch_size_for(free_bytes, classifier, monkeypatch):
    monkeypatch.setattr(classification_evaluation, "free_memory", lambda device: free_bytes)
    return batch_size_that_fits(classifier)


def test_batch_size_fits_into_memory(classifier, monkeypatch):
    assert batch_size_for(10**12, classifier, monkeypatch) == MAX_BATCH_SIZE
    batch_size = batch_size_for(10**7, classifier, monkeypatch)
    # an image needs at least three float32 maps of 16 channels at 8 x 8, for the first convolution, norm and activation
    assert 2 < batch_size < 10**7 / (3 * 16 * 8 * 8 * 4)
    assert batch_size_for(2 * 10**7, classifier, monkeypatch) in (2 * batch_size, 2 * batch_size + 1)
    assert batch_size_for(0, classifier, monkeypatch) == 2


def test_evaluation_does_not_depend_on_the_batch_size(classifier, two_classes, batch_sizes, monkeypatch):
    one_batch = evaluate(classifier, str(two_classes))
    assert batch_sizes[1:] == [20]
    batch_sizes.clear()
    monkeypatch.setattr(classification_evaluation, "free_memory", lambda device: 0)
    batches_of_2 = evaluate(classifier, str(two_classes))
    assert batch_sizes[1:] == [2] * 10
    assert one_batch.predicted.tolist() == batches_of_2.predicted.tolist()
    np.testing.assert_allclose(one_batch.confidence, batches_of_2.confidence, rtol=1e-4)


def test_predict_files_uses_batch_size_1(classifier, two_classes, batch_sizes):
    assert len(list(classifier.predict_files(find_images([str(two_classes)]).paths, []))) == 20
    assert batch_sizes == [1] * 20


@pytest.mark.parametrize(
    ("batch_size", "free_bytes", "expected"),
    [(None, 0, 2), (None, 10**12, 20), (5, 0, 5)],
)
def test_labeling_uses_the_given_batch_size_or_the_largest_that_fits(
    batch_size, free_bytes, expected, two_classes, tmp_path, batch_sizes, monkeypatch
):
    monkeypatch.setattr(classification_evaluation, "free_memory", lambda device: free_bytes)
    teacher = write_teacher(tmp_path / "a")
    write_shards(sorted(two_classes.glob("*/*.png")), tmp_path / "shards", images_per_shard=20)
    label_shards(teacher, str(tmp_path / "shards"), tmp_path / "labels", batch_size=batch_size)
    labeling_sizes = batch_sizes if batch_size else batch_sizes[1:]  # the first batch measures memory
    assert sum(labeling_sizes) == 20
    assert labeling_sizes[0] == max(labeling_sizes) == expected
