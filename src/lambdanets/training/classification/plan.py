"""--plan: steps, memory, hours and read rate of a training run, before it is started."""

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
from lambdanets.training.memory import largest_micro_batch, training_memory
from lambdanets.training.micro_batches import AUTOCAST, accumulation_steps, images_per_rank, with_precision
from lambdanets.training.module import prepare_batch_norm
from lambdanets.training.pseudo_labels.selection import read_selection
from lambdanets.training.recipe import Recipe
from lambdanets.training.speed import format_duration

SAMPLED = 200  # files for the mean size
MEASURED_FLOPS = {"cpu": 3e11, "cuda": 3e13}  # per measured step, forward and backward
ROUNDS = 3


@dataclass(frozen=True)
class DataSize:
    """Number of images and classes of a data set, and mean bytes per file."""

    images: int
    classes: int
    bytes_per_image: float
    source: str


# https://www.image-net.org/challenges/LSVRC/2012: 1,281,167 training images; 138 GB in its files
IMAGENET = DataSize(1_281_167, 1000, 138e9 / 1_281_167, "the size of ImageNet; set --data for yours")


@dataclass(frozen=True)
class Plan:
    """Cost of a run on `devices` devices like this one. Bytes, seconds; images_per_second is that of one device."""

    recipe: Recipe
    data: DataSize
    pseudo_images: int
    devices: int
    steps_per_epoch: int
    micro_batch: int
    accumulation_steps: int
    parameters: int
    flops: int
    memory: int
    free: int
    images_per_second: float
    device: str

    @property
    def steps(self) -> int:
        """Total optimizer steps."""
        return self.steps_per_epoch * self.recipe.epochs

    @property
    def images_per_step(self) -> int:
        """Labeled and pseudo-labeled images per step."""
        return min(self.recipe.batch_size, self.data.images) + self.recipe.pseudo_batch_size

    @property
    def seconds(self) -> float:
        """Training time with perfect scaling over devices."""
        return self.steps * self.images_per_step / (self.images_per_second * self.devices)

    @property
    def read_rate(self) -> float:
        """Bytes per second to be read, for all devices together."""
        return self.images_per_second * self.devices * self.data.bytes_per_image

    def lines(self) -> list[str]:
        """The plan as lines of text."""
        recipe, data = self.recipe, self.data
        each = f"{data.bytes_per_image / 1e3:.3g} kB each, " if data.bytes_per_image else ""
        volume = f"{each}{data.images * data.bytes_per_image / 1e9:.3g} GB" if data.bytes_per_image else "in memory"
        pseudo = (
            f" and {recipe.pseudo_batch_size:,} of {self.pseudo_images:,} pseudo-labeled" if self.pseudo_images else ""
        )
        accumulation = f", {self.accumulation_steps} accumulation steps" if self.accumulation_steps > 1 else ""
        rows = {
            "data": f"{data.images:,} images of {data.classes:,} classes, {volume} ({data.source})",
            "steps": f"{self.steps_per_epoch:,} per epoch, {self.steps:,} in {recipe.epochs} epochs; "
            f"{min(recipe.batch_size, data.images):,} images per step{pseudo}",
            "model": f"{recipe.model}, {self.parameters / 1e6:.1f} M parameters, {self.flops / 1e9:.3g} GFLOPs "
            f"forward per image of {recipe.image_size} x {recipe.image_size}",
            "memory": f"{self.memory / 2**30:.3g} GiB per device with micro-batches of {self.micro_batch} images"
            f"{accumulation}; {self.free / 2**30:.3g} GiB are free on this device",
            "speed": f"{self.images_per_second:.3g} images/s per device in training, measured on this one "
            f"({self.device}, {recipe.precision})",
            "time": f"{format_duration(self.seconds)} on {self.devices} device{'s' * (self.devices > 1)} like this one",
            "reading": f"{self.read_rate / 1e6:.3g} MB/s for all devices, "
            f"{self.steps * self.images_per_step * data.bytes_per_image / 1e12:.3g} TB in total",
        }
        return [f"{name:<9}{text}" for name, text in rows.items()]


def plan(recipe: Recipe, devices: int) -> Plan:
    """Plan a recipe for a number of devices like this one, on which a few steps are timed.

    A recipe without data is planned for a data set of ImageNet's size. Nothing is written. Raises InputError as
    training would.
    """
    if devices < 1:
        raise InputError(f"devices must be at least 1, got {devices}")
    recipe = with_precision(with_model_of_weights(recipe) if recipe.weights else recipe)
    check_precision(recipe.precision)
    data = _data_size(recipe)
    pseudo = 0
    if recipe.pseudo_labels is not None:
        pseudo = read_selection(Path(recipe.pseudo_labels)).images if recipe.pseudo_labels else 130_000_000
    largest, smallest = images_per_rank(recipe, data.images, devices)
    device = best_device()
    free = free_memory(device)
    probe = ClassificationProbe(recipe, data.classes)
    fitting = largest_micro_batch(probe, min(largest, recipe.micro_batch or largest), free)
    accumulated = accumulation_steps(largest, smallest, fitting, recipe.MIN_MICRO_BATCH)
    min_images = min_batch_size(BatchSlice(0, devices, accumulated), recipe.pseudo_batch_size, recipe.MIN_MICRO_BATCH)
    fixed, per_image = training_memory(probe)
    with torch.device("meta"):
        model: Any = probe.build()
    flops = count_flops(model, recipe.image_size, channels=recipe.channels)
    measured = max(2, min(-(-largest // accumulated), int(MEASURED_FLOPS[device.type] / (3 * flops))))
    return Plan(
        recipe=recipe,
        data=data,
        pseudo_images=pseudo,
        devices=devices,
        steps_per_epoch=steps_per_epoch(data.images, recipe.batch_size, min_images),
        micro_batch=-(-largest // accumulated),
        accumulation_steps=accumulated,
        parameters=count_parameters(model),
        flops=flops,
        memory=fixed + per_image * -(-largest // accumulated),
        free=free,
        images_per_second=_measure(probe, measured, device),
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
    """Images per second of forward pass, backward pass and optimizer step, without data loading."""
    recipe = probe.recipe
    model = prepare_batch_norm(probe.build(), recipe).to(device).train()
    if recipe.compile:
        model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    autocast = AUTOCAST.get(recipe.precision)
    seconds = []
    for _ in range(1 + ROUNDS):  # the first is warm-up
        started = time.perf_counter()
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            loss = probe.loss(model, images, device)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return images / statistics.median(seconds[1:])
