"""Detection trained on two ranks."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lambdanets.data.batches import Batch
from lambdanets.data.coco.scattered_digits import write_scattered_digits
from lambdanets.data.order import BatchSlice
from lambdanets.inference.detector import METRICS, DetectionEvaluator
from lambdanets.tasks.coco.task import open_datasets
from lambdanets.tasks.detection.recipe import DetectionRecipe
from lambdanets.tasks.detection.task import DetectionTask, build_model
from lambdanets.training.module import TrainingModule
from training.detection.oracle import Oracle
from training.detection.tiny_detection import tiny_recipe
from training.runs import run_on_two_ranks, task_with

NUM_IMAGES = 2


def repeat_image(count: int) -> Batch:
    """Return a micro-batch of `count` copies of one image with two objects, from a step of NUM_IMAGES images."""
    image = torch.rand(3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    masks = torch.zeros(2, 16, 16, dtype=torch.uint8)
    masks[0, 2:9, 3:10] = masks[1, 7:15, 1:6] = 1
    boxes = torch.tensor([[3.0, 2.0, 10.0, 9.0], [1.0, 7.0, 6.0, 15.0]], dtype=torch.float64)
    target = {"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": masks}
    return Batch([image] * count, [target] * count, torch.arange(count), [], NUM_IMAGES)


def make_module(recipe: DetectionRecipe, model: nn.Module, batch_slice: BatchSlice) -> TrainingModule:
    module = TrainingModule(task_with(DetectionTask, recipe, model), recipe, 1, batch_slice)
    module.log = lambda *_, **__: None  # Lightning's `log` needs a trainer
    return module


def gradients(recipe: DetectionRecipe, batch_slice: BatchSlice) -> list[torch.Tensor]:
    """Return the gradients of a slice of a step in float64, with batch norm in eval mode."""
    torch.manual_seed(0)
    model = build_model(recipe, 10).double()
    module = make_module(recipe, model, batch_slice)
    model.train()
    for norm in model.modules():
        if isinstance(norm, nn.modules.batchnorm._BatchNorm):
            norm.eval()
    step = DistributedDataParallel(_Step(module)) if batch_slice.world_size > 1 else _Step(module)
    for _ in range(batch_slice.accumulation_steps):
        count = NUM_IMAGES // batch_slice.world_size // batch_slice.accumulation_steps
        (step(repeat_image(count)) / batch_slice.accumulation_steps).backward()  # as Lightning does
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


class _Step(nn.Module):
    def __init__(self, module: TrainingModule) -> None:
        super().__init__()
        self.model = module.model
        self._training_step = module.training_step

    def forward(self, batch: Batch) -> torch.Tensor:
        return self._training_step(batch, 0)["loss"]


@pytest.mark.parametrize("division", ["two ranks", "two micro-batches"])
def test_gradients_of_equal_images_do_not_depend_on_their_division(division, tmp_path):
    """Gradients can only be equal if all images are equal and all regions are sampled.

    Each loss is a mean over the regions sampled in a micro-batch, and the number of regions depends on the images. Here
    all regions are sampled: all 252 anchors (up to 256 are sampled) and all 12 proposals (up to a quarter of 64 may be
    objects).
    """
    fields = {"image_size": 16, "proposals": 10, "sampled_regions": 64, "drop_path": 0.0}
    recipe = tiny_recipe(tmp_path / "digits", **fields)
    expected = gradients(recipe, BatchSlice())
    if division == "two ranks":
        divided, _ = run_on_two_ranks(lambda rank: gradients(recipe, BatchSlice(rank, 2)), tmp_path)
    else:
        divided = gradients(recipe, BatchSlice(accumulation_steps=2))
    largest = max(gradient.abs().max() for gradient in expected)
    assert largest > 0
    for expected_gradient, actual_gradient in zip(expected, divided, strict=True):
        assert (expected_gradient - actual_gradient).abs().max() < 1e-12 * largest


def validate(recipe: DetectionRecipe, batch_slice: BatchSlice) -> tuple[dict[str, float], list[list[int]]]:
    """Validate a slice of the images with an oracle that fails in the last image.

    Return the validation metrics and, for each score, the indices of the images.
    """
    images = open_datasets(recipe)[1]
    module = make_module(recipe, Oracle(images, blind=[len(images) - 1]), batch_slice)
    scored = []

    def score(self, measures, unreadable):
        scored.append(sorted(index for index, _ in measures))
        return original(self, measures, unreadable)

    with pytest.MonkeyPatch.context() as patch:
        original = DetectionEvaluator.score
        patch.setattr(DetectionEvaluator, "score", score)
        module.on_validation_epoch_start()
        batches = module.task.evaluator(recipe, images).batches(1, 0, batch_slice)
        for batch_idx, batch in enumerate(batches):
            module.validation_step(batch, batch_idx)
        module.on_validation_epoch_end()
    return module.validation_metrics, scored


def test_two_ranks_evaluate_all_validation_images(tmp_path):
    write_scattered_digits(tmp_path / "digits", 1, 3, 0)
    recipe = tiny_recipe(tmp_path / "digits", max_detections=100)
    expected = validate(recipe, BatchSlice())
    assert [*expected[0]] == [*METRICS]
    assert all(0.1 < value < 0.9 for value in expected[0].values())
    assert expected[1] == [[0, 1, 2]]
    first, second = run_on_two_ranks(lambda rank: validate(recipe, BatchSlice(rank, 2)), tmp_path)
    assert first == expected
    assert second == (expected[0], [])  # broadcast from rank zero
