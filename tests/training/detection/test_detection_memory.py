from dataclasses import replace

import pytest
import torch

from lambdanets.errors import InputError
from lambdanets.recipes.scattered_digits import recipe as DIGITS
from lambdanets.training import micro_batches, run
from lambdanets.training.detection.model import DetectionProbe
from lambdanets.training.detection.task import DetectionTask
from lambdanets.training.distributed import World
from lambdanets.training.memory import largest_micro_batch, training_memory

SMALL = DIGITS
RECIPES = {
    "digits": SMALL,
    "LambdaResNet-50 with the heads for COCO": replace(
        SMALL,
        model="lambda_resnet50",
        levels=(1, 2, 3, 4),
        pyramid_channels=64,
        box_layers=(4, 256),
        mask_layers=4,
        proposals=200,
        sampled_regions=64,
    ),
    "wide heads on many regions": replace(SMALL, image_size=32, sampled_regions=256, proposals=400, mask_layers=4),
}


def bytes_saved_by_autograd(recipe, batch_size=2):
    """Return the bytes per image that autograd saves in a step on full-size images with as many objects as sampled."""
    torch.manual_seed(0)
    model = DetectionProbe(recipe, 10).build().train()
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved = {}

    def record(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    size, num_objects = recipe.image_size, recipe.sampled_regions // 4
    corners = torch.randint(0, size // 2, (batch_size, num_objects, 2))
    boxes = torch.cat([corners, corners + torch.randint(8, size // 2, (batch_size, num_objects, 2))], 2)
    masks = torch.zeros(batch_size, num_objects, size, size, dtype=torch.uint8)
    for image in range(batch_size):
        for mask, (left, top, right, bottom) in zip(masks[image], boxes[image].tolist(), strict=True):
            mask[top:bottom, left:right] = 1
    labels = torch.ones(num_objects, dtype=torch.int64)
    targets = [{"boxes": boxes[i].float(), "labels": labels, "masks": masks[i]} for i in range(batch_size)]
    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        losses = model(list(torch.rand(batch_size, 3, size, size)), targets)
        loss = torch.stack(list(losses.values())).sum()  # keeps the graph alive
    assert loss.isfinite()
    return sum(storage.nbytes() for address, storage in saved.items() if address not in parameters) / batch_size


@pytest.mark.parametrize("name", RECIPES)
def test_predicted_memory_is_close_to_the_memory_autograd_saves(name):
    predicted = training_memory(DetectionProbe(RECIPES[name], 10))[1]
    assert 1 / 1.5 < predicted / bytes_saved_by_autograd(RECIPES[name]) < 1.5


def test_memory_probe_has_the_maximum_number_of_objects(tiny, monkeypatch):
    task = DetectionTask.open(tiny, World(), resumed=False)
    max_objects = max(len(image.objects) for image in task.training.annotations.images)
    assert max_objects > 1
    assert task.probe().num_objects == max_objects
    assert replace(task, recipe=replace(tiny, max_objects=1)).probe().num_objects == 1
    model, calls = task.probe().build(), []
    monkeypatch.setattr(model, "forward", lambda images, targets: calls.append(targets) or {"loss": torch.zeros(())})
    replace(task.probe(), num_objects=77).loss(model, 2, torch.device("cpu"))
    assert [len(target["masks"]) for target in calls[0]] == [77, 77]


def test_memory_counts_weights_gradients_and_optimizer_states():
    parameters = sum(parameter.numel() for parameter in DetectionProbe(SMALL, 10).build().parameters())
    assert training_memory(DetectionProbe(SMALL, 10))[0] == 4 * parameters * 3
    assert training_memory(DetectionProbe(replace(SMALL, ema_decay=0.99), 10))[0] == 4 * parameters * 4


def test_detection_micro_batch_is_halved_down_to_1():
    probe = DetectionProbe(SMALL, 10)
    fixed, per_image = training_memory(probe)
    assert largest_micro_batch(probe, 8, fixed + 8 * per_image) == 8
    assert largest_micro_batch(probe, 8, fixed + 7 * per_image) == 4
    assert largest_micro_batch(probe, 8, fixed + per_image) == 1
    message = r"on images of 128 x 128 with a micro-batch of 1 needs about .* GiB, but only .* choose a smaller"
    with pytest.raises(InputError, match=message):
        largest_micro_batch(probe, 8, fixed + per_image - 1)


def test_detection_run_reports_a_reduced_micro_batch(tiny, tmp_path, monkeypatch, capsys):
    fixed, per_image = training_memory(DetectionProbe(tiny, 10))
    monkeypatch.setattr(micro_batches, "free_memory", lambda device: fixed + int(1.5 * per_image))
    assert run.start(tiny, tmp_path / "run")["micro_batch"] == 1
    assert "a micro-batch of 2 images does not fit into memory: using 1" in capsys.readouterr().err


def test_too_large_detector_is_rejected_without_creating_a_folder(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(micro_batches, "free_memory", lambda device: 2**20)
    with pytest.raises(InputError, match="with a micro-batch of 1 needs about"):
        run.start(tiny, tmp_path / "run")
    assert not (tmp_path / "run").exists()
