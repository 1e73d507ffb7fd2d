import torch

from lambdanets.data.batches import Batch
from lambdanets.tasks.detection import DetectionTask
from lambdanets.training.initial_weights import build_model
from training.detection.tiny_detection import tiny_recipe
from training.runs import norms, task_with


def test_gradients_of_equal_images_do_not_depend_on_micro_batches(tmp_path):
    """Each loss is a mean over the regions sampled in a micro-batch, whose number depends on the images.

    Here all images are equal, and all regions are sampled: all 252 anchors (up to 256 are sampled) and all 12 proposals
    (up to a quarter of 64 may be objects).
    """
    recipe = tiny_recipe(tmp_path, image_size=16, proposals=10, sampled_regions=64, drop_path=0.0)
    torch.manual_seed(0)
    model = build_model(recipe, 10).double().train()
    for norm in norms(model):
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
            task.losses(batch)["loss"].backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    largest = max(gradient.abs().max() for gradient in gradients[0])
    for whole, divided in zip(*gradients, strict=True):
        assert (whole - divided).abs().max() < 1e-12 * largest
