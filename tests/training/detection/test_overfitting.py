"""A detector overfits one image, from files to average precision, and trains on images without objects."""

from pathlib import Path

import torch
from PIL import Image

from data.coco.coco_files import image, rectangle, write
from lambdanets.data.order import BatchSlice
from lambdanets.inference.detector import Detector
from lambdanets.inference.model_card import DetectorCard, make_card
from lambdanets.tasks.detection import DetectionTask
from lambdanets.training import run
from lambdanets.training.initial_weights import build_model
from training.detection.tiny_detection import TWO_CATEGORIES, edit_annotations, tiny_recipe
from training.runs import SEED, load_weights, norms

SIDE, STEPS = 64, 300  # five times the largest number of steps needed with eight seeds
BOXES = {4: (6, 8, 30, 50), 7: (36, 20, 60, 44)}
SHADES = {4: 20, 7: 235}


def write_two_rectangles(folder: Path) -> None:
    """Write an image with a dark and a light object, for training and validation."""
    pixels = torch.full((SIDE, SIDE), 120, dtype=torch.uint8)
    for category, (left, top, right, bottom) in BOXES.items():
        pixels[top:bottom, left:right] = SHADES[category]
    annotations = [rectangle(category, *box, category_id=category) for category, box in BOXES.items()]
    content = {"images": [image(1, height=SIDE, width=SIDE)], "annotations": annotations, "categories": TWO_CATEGORIES}
    (folder / "images").mkdir()
    Image.fromarray(pixels.numpy()).save(folder / "images/1.png")
    write(folder / "train.json", content)


def test_overfits_one_image(tmp_path):
    write_two_rectangles(tmp_path)
    annotations = {name: str(tmp_path / "train.json") for name in ("data", "validation_data")}
    images = {name: str(tmp_path / "images") for name in ("images", "validation_images")}
    no_augmentation = {"jitter": (1.0, 1.0), "flip": 0.0, "drop_path": 0.0, "batch_size": 1}
    heads = {"pyramid_channels": 16, "box_layers": (1, 32), "proposals": 20, "sampled_regions": 16}
    recipe = tiny_recipe(tmp_path, **annotations, **images, **no_augmentation, **heads, max_detections=10)
    task = DetectionTask(recipe)
    torch.manual_seed(SEED)
    model = build_model(recipe, len(TWO_CATEGORIES))
    for norm in norms(model):
        norm.momentum = 0.3
    names, ids = ([category[field] for category in TWO_CATEGORIES] for field in ("name", "id"))
    card = make_card(DetectorCard, recipe, names, category_ids=ids)
    detector = Detector(model, card, task.validation)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    (batch,) = task.training_batches(BatchSlice())
    ap50_history = []
    for step in range(1, STEPS + 1):
        model.train()
        sum(model(batch.images, batch.targets).values()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            model.eval()
            summary = detector.evaluate().scores
            ap50_history.append([summary[iou_type]["AP50"] for iou_type in ("bbox", "segm")])
            if min(ap50_history[-1]) == 1:
                return
    raise AssertionError(f"AP50 of boxes and masks must be 1 within {STEPS} steps, got, every 20 steps, {ap50_history}")


def test_steps_without_objects_are_trained_on_also_in_bfloat16(tmp_path):
    recipe = tiny_recipe(tmp_path / "digits", batch_size=1, epochs=1, precision="bf16-mixed")
    edit_annotations(tmp_path / "digits/train.json", annotations=lambda rows: [x for x in rows if x["image_id"] == 1])
    run.start(recipe, tmp_path / "run")
    assert all(tensor.isfinite().all() for tensor in load_weights(tmp_path / "run").values())
