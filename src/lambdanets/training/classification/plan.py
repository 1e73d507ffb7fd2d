"""--plan: estimates steps, memory, hours and read rate of a training run without training."""

import contextlib
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from lambdanets.data.image_search import describe_classes, describe_left_out
from lambdanets.data.images import UnreadableImage
from lambdanets.data.labeled_images import LabeledImages, SelectedImages, image_file
from lambdanets.data.order import steps_per_epoch
from lambdanets.data.shards import ShardedImages
from lambdanets.device import best_device, check_precision, free_memory
from lambdanets.errors import InputError
from lambdanets.progress import format_duration
from lambdanets.provenance import hardware
from lambdanets.training.batch_norm import prepare_batch_norm
from lambdanets.training.classification.model import ClassificationProbe, resolve_model_from_weights
from lambdanets.training.classification.recipe import ClassificationRecipe
from lambdanets.training.classification.task import open_for_training
from lambdanets.training.memory import largest_micro_batch, training_memory
from lambdanets.training.micro_batches import AUTOCAST, accumulation_steps, images_per_rank, resolve_precision

SAMPLED_FILES = 200  # at most; their mean size is used for the whole dataset
FLOPS_PER_STEP = {"cpu": 3e11, "cuda": 3e13}  # forward and backward; determines the batch size of the measured steps
MEASURED_STEPS = 3
FEW_IMAGES = 10_000  # below, the plan advises to fine-tune


@dataclass(frozen=True)
class DataSize:
    """Number of images and classes of a dataset, mean bytes per file, and where the numbers are from."""

    num_images: int
    num_classes: int
    bytes_per_image: float
    source: str
    details: tuple[str, ...] = ()  # lines about classes and files that are left out


# https://www.image-net.org/challenges/LSVRC/2012: 1,281,167 training images in 138 GB of files
IMAGENET = DataSize(1_281_167, 1000, 138e9 / 1_281_167, "the size of ImageNet; set --data for your own data")


@dataclass(frozen=True)
class Plan:
    """Estimated cost of a run on `devices` devices like this one.

    memory: bytes needed per device. free_memory: free bytes on this device. images_per_second: throughput per device.
    """

    recipe: ClassificationRecipe
    data: DataSize
    devices: int
    steps_per_epoch: int
    micro_batch: int
    accumulation_steps: int
    num_parameters: int
    flops: int
    memory: int
    free_memory: int
    images_per_second: float
    device: str

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.steps_per_epoch * self.recipe.epochs

    @property
    def images_per_step(self) -> int:
        """Images per step."""
        return sum(self.recipe.step_sizes(self.data.num_images))

    @property
    def seconds(self) -> float:
        """Training time, assuming perfect scaling over devices."""
        return self.steps * self.images_per_step / (self.images_per_second * self.devices)

    @property
    def read_rate(self) -> float:
        """Bytes per second that all devices together must read."""
        return self.images_per_second * self.devices * self.data.bytes_per_image

    def format_lines(self) -> list[str]:
        """Format the plan, one line per topic."""
        recipe, data = self.recipe, self.data
        volume = "in memory"
        if data.bytes_per_image:
            total_gb = data.num_images * data.bytes_per_image / 1e9
            volume = f"{data.bytes_per_image / 1e3:.3g} kB each, {total_gb:.3g} GB"
        accumulation = f", {self.accumulation_steps} accumulation steps" if self.accumulation_steps > 1 else ""
        rows = {
            "data": f"{data.num_images:,} images of {data.num_classes:,} classes, {volume} ({data.source})",
            "steps": f"{self.steps_per_epoch:,} per epoch, {self.steps:,} in {recipe.epochs} epochs; "
            f"{self.images_per_step:,} images per step",
            "model": f"{recipe.model}, {self.num_parameters / 1e6:.1f} M parameters, {self.flops / 1e9:.3g} GFLOPs "
            f"forward per image of {recipe.image_size} x {recipe.image_size}",
            "memory": f"{self.memory / 2**30:.3g} GiB per device with micro-batches of {self.micro_batch} images"
            f"{accumulation}; {self.free_memory / 2**30:.3g} GiB are free on this device",
            "speed": f"{self.images_per_second:.3g} images/s per device in training, measured on this one "
            f"({self.device}, {recipe.precision})",
            "time": f"{format_duration(self.seconds)} on {self.devices} device{'s' * (self.devices > 1)} like this one",
            "reading": f"{self.read_rate / 1e6:.3g} MB/s for all devices, "
            f"{self.steps * self.images_per_step * data.bytes_per_image / 1e12:.3g} TB in total",
        }
        if recipe.data and recipe.weights is None and data.num_images < FEW_IMAGES:
            rows["advice"] = "for few images, start from weights: lambdanets train finetune --weights RUN --data DATA"
        return [*data.details, *(f"{name:<9}{text}" for name, text in rows.items())]


def plan(recipe: ClassificationRecipe, devices: int) -> Plan:
    """Estimate the cost of a recipe on a number of devices like this one, by timing a few steps on this device.

    If the recipe has no data, the plan is for a dataset of ImageNet's size. No files are written. Raises InputError
    where training would.
    """
    if devices < 1:
        raise InputError(f"devices must be at least 1, got {devices}")
    recipe = resolve_precision(resolve_model_from_weights(recipe) if recipe.weights else recipe)
    check_precision(recipe.precision)
    data = _data_size(recipe)
    max_images, min_images = images_per_rank(recipe, data.num_images, devices)
    device = best_device()
    free = free_memory(device)
    probe = ClassificationProbe(recipe, data.num_classes)
    max_micro_batch = largest_micro_batch(probe, min(max_images, recipe.micro_batch or max_images), free)
    num_micro_batches = accumulation_steps(max_images, min_images, max_micro_batch, recipe.MIN_MICRO_BATCH)
    micro_batch = -(-max_images // num_micro_batches)
    smallest_batch = devices * num_micro_batches * recipe.MIN_MICRO_BATCH
    fixed_memory, memory_per_image = training_memory(probe)
    with torch.device("meta"):
        model: Any = probe.build().eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.empty(1, recipe.channels, recipe.image_size, recipe.image_size))
    flops = counter.get_total_flops()
    measured_batch_size = max(2, min(micro_batch, int(FLOPS_PER_STEP[device.type] / (3 * flops))))
    return Plan(
        recipe=recipe,
        data=data,
        devices=devices,
        steps_per_epoch=steps_per_epoch(data.num_images, recipe.batch_size, smallest_batch),
        micro_batch=micro_batch,
        accumulation_steps=num_micro_batches,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        flops=flops,
        memory=fixed_memory + memory_per_image * micro_batch,
        free_memory=free,
        images_per_second=_measure_throughput(probe, measured_batch_size, device),
        device=hardware()["gpu"] or f"{hardware()['processor']}, {torch.get_num_threads()} threads",
    )


def _data_size(recipe: ClassificationRecipe) -> DataSize:
    if not recipe.data:
        return IMAGENET
    splits = open_for_training(recipe)
    images = splits.train
    if isinstance(images, ShardedImages):
        bytes_per_image = images.total_bytes / max(len(images), 1)
    else:
        bytes_per_image = _mean_file_size(images)
    details = (describe_classes(splits.classes), describe_left_out(splits.left_out))
    return DataSize(len(images), len(splits.classes), bytes_per_image, splits.source, details)


def _mean_file_size(images: LabeledImages) -> float:
    """Estimate the mean size of the image files from a sample; 0 for images in memory or if no file can be read."""
    stored: Any = images
    while isinstance(stored, SelectedImages):
        stored = stored.images
    if not hasattr(stored, "file"):
        return 0.0
    sizes = []
    for index in range(0, len(images), -(-len(images) // SAMPLED_FILES)):
        with contextlib.suppress(UnreadableImage):
            sizes.append(len(image_file(images, index)[0]))
    return statistics.mean(sizes) if sizes else 0.0


def _measure_throughput(probe: ClassificationProbe, batch_size: int, device: torch.device) -> float:
    """Return images per second of forward pass, backward pass and optimizer step, without data loading."""
    recipe = probe.recipe
    model = prepare_batch_norm(probe.build(), recipe).to(device).train()
    if recipe.compile:
        model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    autocast = AUTOCAST.get(recipe.precision)
    seconds = []
    for _ in range(1 + MEASURED_STEPS):  # the first is a warm-up
        start = time.perf_counter()
        with torch.autocast(device.type, autocast, enabled=autocast is not None):
            loss = probe.loss(model, batch_size, device)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return batch_size / statistics.median(seconds[1:])
