"""The micro-batch that fits into memory, from a trial with the largest example."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from lambdanets.data.order import BatchSlice
from lambdanets.errors import InputError
from lambdanets.recipes.digit_masks import recipe as MASKS
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.recipes.scattered_digits import recipe as OBJECTS
from lambdanets.tasks.classification import ClassificationTask
from lambdanets.training import micro_batches, run
from lambdanets.training.callbacks import RunLog
from lambdanets.training.distributed import World
from lambdanets.training.micro_batches import Trial, largest_micro_batch

SMALL = replace(DIGITS, model="resnet10t", channels=3, image_size=64)
RECIPES = {
    "classification": SMALL,
    "detection": replace(OBJECTS, image_size=64, sampled_regions=40, proposals=40),
    "segmentation": replace(MASKS, image_size=32),
}


def open_trial(recipe):
    task = run.open_task(replace(recipe, precision="32-true"), World())
    return Trial(task, torch.device("cpu"))


def test_memory_of_resnet50_is_in_the_expected_range():
    # ResNet-50 saves 80 to 100 MiB of activations per image of 224 x 224 in float32
    trial = open_trial(replace(DIGITS, model="resnet50", image_size=224, channels=3))
    assert trial.state_bytes == 23_528_522 * 4 * 2  # gradients and momentum
    for images in (2, 64):
        assert trial.fits(images, trial.state_bytes + images * 100 * 2**20)
        assert not trial.fits(images, trial.state_bytes + images * 80 * 2**20)


def test_optimizer_states_and_ema_are_counted():
    sgd, adamw, ema = (
        open_trial(replace(SMALL, **fields)).state_bytes for fields in ({}, {"optimizer": "adamw"}, {"ema_decay": 0.99})
    )
    assert adamw == ema == sgd * 3 // 2


@pytest.mark.parametrize("name", RECIPES)
def test_a_trial_changes_nothing(name):
    task = run.open_task(replace(RECIPES[name], precision="32-true"), World())
    weights = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    trial = Trial(task, torch.device("cpu"))
    trial.step(2)
    assert trial.smallest == (2 if name == "classification" else 1)
    assert trial.fits(2, 2**40)
    with pytest.raises(InputError, match=rf"with a micro-batch of {trial.smallest} needs more than the .* GiB"):
        largest_micro_batch(trial, 64, trial.state_bytes)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in task.model.state_dict().items())


@pytest.mark.parametrize(("requested", "fitting", "expected"), [(64, 64, 64), (64, 63, 32), (65, 20, 17), (9, 2, 2)])
def test_micro_batch_is_halved_until_it_fits(requested, fitting, expected):
    trial = SimpleNamespace(fits=lambda size, free: size <= fitting, smallest=2)
    assert largest_micro_batch(trial, requested, 0) == expected


def test_largest_example_of_detection_has_the_most_objects_in_a_square():
    task = run.open_task(RECIPES["detection"], World())
    image, target = task.largest_example(task.training_batches(BatchSlice()))
    assert image.shape == (3, 64, 64)
    assert target["masks"].shape == (10, 64, 64)
    assert target["boxes"].shape == (10, 4)


@pytest.mark.parametrize("field", ["batch_size", "micro_batch"])
def test_classifiers_need_two_images_per_micro_batch(field):
    with pytest.raises(InputError, match=rf"^{field} must .* at least 2.* got 1"):
        run.prepare(run.resolve_recipe(replace(SMALL, **{field: 1})), World())


def test_too_large_model_is_rejected_without_creating_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(micro_batches, "free_memory", lambda device: 2**20)
    with pytest.raises(InputError, match=r"needs more than the 0\.0 GiB"):
        run.start(SMALL, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_logged_memory_of_a_gpu_is_not_that_of_trials(tmp_path, monkeypatch):
    resets = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: resets.append(None))
    trainer = module = SimpleNamespace(is_global_zero=False, current_epoch=0, max_epochs=1, device="cpu")
    RunLog(tmp_path, ClassificationTask).on_train_start(trainer, module)
    assert resets == [None]
