from dataclasses import replace

import numpy as np
import pytest

from lambdanets.inference.classifier import Classifier
from lambdanets.inference.evaluator import evaluate
from lambdanets.inference.loading import load
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


def test_evaluation_does_not_depend_on_the_batch_size(classifier, two_classes, batch_sizes):
    one_batch = evaluate(classifier, str(two_classes))
    batches_of_2 = evaluate(classifier, str(two_classes), batch_size=2)
    assert batch_sizes == [20] + [2] * 10
    assert one_batch.predicted.tolist() == batches_of_2.predicted.tolist()
    np.testing.assert_allclose(one_batch.confidence, batches_of_2.confidence, rtol=1e-4)
