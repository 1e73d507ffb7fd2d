"""What a run takes, before anything is spent: steps, memory, hours, data and the rate it must be read at."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lambdanets.data.batches import min_batch_size, steps_per_epoch
from lambdanets.data.labeled_images import image_file
from lambdanets.data.order import BatchSlice
from lambdanets.data.shards.images import ShardedImages
from lambdanets.device import best_device, check_precision, free_memory
from lambdanets.errors import InputError
from lambdanets.models.counting import count_flops, count_parameters
from lambdanets.provenance import hardware
from lambdanets.training.classification.model import ClassificationProbe, with_model_of_weights
from lambdanets.training.classification.task import open_for_training
from lambdanets.training.division import AUTOCAST, images_of_process, parts_of_step, with_precision
from lambdanets.training.memory import images_that_fit, training_memory
from lambdanets.training.module import prepare_batch_norm
from lambdanets.training.pseudo_labels.selection import read_selection
from lambdanets.training.recipe import Recipe
from lambdanets.training.speed import duration

SAMPLED = 200  # files whose sizes stand for all
MEASURED_FLOPS = {"cpu": 3e11, "cuda": 3e13}  # of a step, forward and backward; at least two images
ROUNDS = 3


@dataclass(frozen=True)
class DataSize:
    """How many images a set has, of how many classes, and the bytes of a file."""

    images: int
    classes: int
    bytes_an_image: float
    source: str


# https://www.image-net.org/challenges/LSVRC/2012: 1,281,167 training images; 138 GB in its files
IMAGENET = DataSize(1_281_167, 1000, 138e9 / 1_281_167, "as many as ImageNet has; name yours by --data")


@dataclass(frozen=True)
class Plan:
    """What a run of a recipe takes on so many devices like this one. Bytes, seconds; images a second of one device."""

    recipe: Recipe
    data: DataSize
    pseudo_images: int
    devices: int
    steps_an_epoch: int
    at_a_time: int
    parts: int
    parameters: int
    flops: int
    memory: int
    free: int
    images_a_second: float
    device: str

    @property
    def steps(self) -> int:
        """Optimizer steps in all."""
        return self.steps_an_epoch * self.recipe.epochs

    @property
    def images_a_step(self) -> int:
        """Labelled and pseudo-labelled images of a step."""
        return min(self.recipe.batch_size, self.data.images) + self.recipe.pseudo_batch_size

    @property
    def seconds(self) -> float:
        """Of training on the devices, where they share the work evenly and wait for nothing."""
        return self.steps * self.images_a_step / (self.images_a_second * self.devices)

    @property
    def read_rate(self) -> float:
        """Bytes a second that must be read, on all devices together."""
        return self.images_a_second * self.devices * self.data.bytes_an_image

    def lines(self) -> list[str]:
        """The plan in words."""
        recipe, data = self.recipe, self.data
        each = f"{data.bytes_an_image / 1e3:.3g} kB each, " if data.bytes_an_image else ""
        volume = f"{each}{data.images * data.bytes_an_image / 1e9:.3g} GB" if data.bytes_an_image else "in memory"
        pseudo = (
            f" and {recipe.pseudo_batch_size:,} of {self.pseudo_images:,} pseudo-labelled" if self.pseudo_images else ""
        )
        parts = f", in {self.parts} parts of a step" if self.parts > 1 else ""
        rows = {
            "data": f"{data.images:,} images of {data.classes:,} classes, {volume} ({data.source})",
            "steps": f"{self.steps_an_epoch:,} an epoch, {self.steps:,} in {recipe.epochs} epochs; each of "
            f"{min(recipe.batch_size, data.images):,} images{pseudo}",
            "model": f"{recipe.model}, {self.parameters / 1e6:.1f} M parameters, {self.flops / 1e9:.3g} GFLOPs "
            f"forward for an image of {recipe.image_size} x {recipe.image_size}",
            "memory": f"{self.memory / 2**30:.3g} GiB a device with {self.at_a_time} images at a time{parts}; "
            f"{self.free / 2**30:.3g} GiB are free here",
            "speed": f"{self.images_a_second:.3g} images/s in training, measured on this device ({self.device}, "
            f"{recipe.precision})",
            "time": f"{duration(self.seconds)} on {self.devices} such device{'s' * (self.devices > 1)}",
            "reading": f"{self.read_rate / 1e6:.3g} MB/s for all devices together, "
            f"{self.steps * self.images_a_step * data.bytes_an_image / 1e12:.3g} TB in all",
        }
        return [f"{name:<9}{text}" for name, text in rows.items()]


def plan(recipe: Recipe, devices: int) -> Plan:
    """Make the plan of a recipe for so many devices like the one at hand, of which a few steps are measured.

    A recipe that names no data is planned as for ImageNet. Nothing is written. Raises InputError as training would.
    """
    if devices < 1:
        raise InputError(f"devices must be at least 1, got {devices}")
    recipe = with_precision(with_model_of_weights(recipe) if recipe.weights else recipe)
    check_precision(recipe.precision)
    data = _data_size(recipe)
    pseudo = 0
    if recipe.pseudo_labels is not None:
        pseudo = read_selection(Path(recipe.pseudo_labels))["images"] if recipe.pseudo_labels else 130_000_000
    own, fewest = images_of_process(recipe, data.images, devices)
    device = best_device()
    free = free_memory(device)
    probe = ClassificationProbe(recipe, data.classes)
    fitting = images_that_fit(probe, min(own, recipe.micro_batch or own), free)
    parts = parts_of_step(own, fewest, fitting, recipe.MIN_MICRO_BATCH)
    min_images = min_batch_size(BatchSlice(0, devices, parts), recipe.pseudo_batch_size, recipe.MIN_MICRO_BATCH)
    fixed, per_image = training_memory(probe)
    with torch.device("meta"):
        model: Any = probe.build()
    flops = count_flops(model, recipe.image_size, channels=recipe.channels)
    measured = max(2, min(-(-own // parts), int(MEASURED_FLOPS[device.type] / (3 * flops))))
    return Plan(
        recipe=recipe,
        data=data,
        pseudo_images=pseudo,
        devices=devices,
        steps_an_epoch=steps_per_epoch(data.images, recipe.batch_size, min_images),
        at_a_time=-(-own // parts),
        parts=parts,
        parameters=count_parameters(model),
        flops=flops,
        memory=fixed + per_image * -(-own // parts),
        free=free,
        images_a_second=_measure(probe, measured, device),
        device=hardware()["gpu"] or f"{hardware()['processor']}, {torch.get_num_threads()} threads",
    )


def _data_size(recipe: Recipe) -> DataSize:
    if not recipe.data:
        return IMAGENET
    splits = open_for_training(recipe)
    images = splits.train
    if isinstance(images, ShardedImages):
        each = images.total_bytes / max(len(images), 1)
    else:
        numbers = range(0, len(images), -(-len(images) // SAMPLED))
        each = statistics.mean(len(file[0]) if (file := image_file(images, number)) else 0 for number in numbers)
    return DataSize(len(images), len(splits.classes), each, splits.source)


def _measure(probe: ClassificationProbe, images: int, device: torch.device) -> float:
    """Images a second of forward and backward passes and an optimizer step, on images that are there already."""
    recipe = probe.recipe
    model = prepare_batch_norm(probe.build(), recipe).to(device).train()
    if recipe.compile:
        model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    autocast = AUTOCAST.get(recipe.precision)
    seconds = []
    for _ in range(1 + ROUNDS):  # the first makes what is kept for the others
        begun = time.perf_counter()
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            loss = probe.loss(model, images, device)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return images / statistics.median(seconds[1:])
