"""docs/scale.md: what 130 million pseudo-labelled images at 350 epochs take, from figures of one image.

    python experiments/scale.py --measure [--out scale.json]   measure this machine, a minute
    python experiments/scale.py [--page docs/scale.md]         write the page from experiments/results

Measured here: bytes and milliseconds of an image on a processor core, of a checkpoint, of a row of labels. Devices'
rates are the paper's (Table 5), since this project has measured none.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from lambdanets.data.images import read_image
from lambdanets.models import create_model
from lambdanets.provenance import commit, hardware, versions
from lambdanets.recipes import find_recipe
from lambdanets.text_tables import markdown_table
from lambdanets.training.checkpoints import AtomicCheckpointIO
from lambdanets.training.classification.loaders import make_transform
from lambdanets.training.speed import duration

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results/xeon-2-cores"
SIZES = {"50_128": 128, "152_224": 224, "152_288": 288}
IMAGES, LABELLED, EPOCHS, RATIO = 130_000_000, 1_281_167, 350, 14
DEVICES = (8, 64, 512)
TRAIN_RATE, LABEL_RATE = 1620 / 8, 6100 / 8  # images/s of a TPUv3 core, LambdaResNet-152 at 288: Table 5
HOURS_A_FAILURE = 54 * 24 * 16_384 / 419  # device hours: 419 interruptions in 54 days on 16,384 GPUs (arXiv:2407.21783)
SHARD_IMAGES = 10_000


def measure() -> dict[str, Any]:
    """Bytes and seconds of an image and of a checkpoint on this machine, one thread."""
    torch.set_num_threads(1)
    files = [photograph(number) for number in range(64)]
    milliseconds = {}
    for name, size in SIZES.items():
        recipe = find_recipe(f"imagenet_350_{name}")
        transform = make_transform(recipe)
        milliseconds[str(size)] = 1000 * timed(partial(prepare_all, files, transform)) / len(files)
    model = create_model("lambda_resnet152")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copies = [{name: tensor.clone() for name, tensor in state.items()} for _ in range(2)]
    checkpoint = {"state_dict": state, "current": copies[0], "momentum": copies[1]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "last.ckpt")
        seconds = timed(lambda: AtomicCheckpointIO().save_checkpoint(checkpoint, path))
        written = path.stat().st_size
    return {
        "file_bytes": statistics.mean(map(len, files)),
        "milliseconds_an_image": milliseconds,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "checkpoint_bytes": written,
        "checkpoint_seconds": seconds,
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
    }


def prepare_all(files: list[bytes], transform: Any) -> list[Any]:
    """What a worker does with image files."""
    return [transform(read_image(io.BytesIO(file), "")) for file in files]


def timed(do: Any) -> float:
    """The median seconds of three calls after one."""
    do()
    found = []
    for _ in range(3):
        begun = time.perf_counter()
        do()
        found.append(time.perf_counter() - begun)
    return statistics.median(found)


def photograph(seed: int) -> bytes:
    """A JPEG file of 500 x 375 pixels and about as many bytes as ImageNet's: noise with as much in each octave."""
    random = np.random.default_rng(seed)
    pixels = np.full((375, 500, 3), 128.0, np.float32)
    for octave in range(1, 8):
        small = np.clip(128 + random.normal(0, 22, ((375 >> octave) + 1, (500 >> octave) + 1, 3)), 0, 255)
        layer = Image.fromarray(small.astype(np.uint8)).resize((500, 375), Image.Resampling.BICUBIC)
        pixels += np.asarray(layer, np.float32) - 128
    file = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=92)
    return file.getvalue()


def page(scale: dict[str, Any], selection: dict[str, Any], loader: dict[str, Any]) -> str:
    """The page from what was measured."""
    per_image = 138e9 / LABELLED
    seen = EPOCHS * LABELLED * (1 + RATIO)
    every = EPOCHS * IMAGES
    core = scale["milliseconds_an_image"]["288"] / 1000
    shards = -(-IMAGES // SHARD_IMAGES)
    label_bytes = selection["label_bytes"] / selection["options"]["rows"] * IMAGES
    rows = []
    for devices in DEVICES:
        seconds = seen / (TRAIN_RATE * devices)
        hours = seconds / 3600
        failures = hours * devices / HOURS_A_FAILURE
        row = {
            "devices": str(devices),
            "labelling": duration(IMAGES / (LABEL_RATE * devices)),
            "training": duration(seconds),
            "350 passes over all": duration(every / (TRAIN_RATE * devices)),
            "images/s": f"{TRAIN_RATE * devices:,.0f}",
            "reading": f"{TRAIN_RATE * devices * per_image / 1e6:,.0f} MB/s",
            "processor cores": f"{TRAIN_RATE * devices * core:,.0f}",
            "failures": f"{failures:.1f}",
            "images a device and step": f"{-(-4096 // devices)} + {-(-4096 * RATIO // devices)}",
        }
        rows.append(row)
    steps = EPOCHS * -(-LABELLED // 4096)
    lost = 500 / 2
    rates = [
        [name, f"{statistics.median(found):.0f}", f"{min(found):.0f} to {max(found):.0f}"]
        for name, found in loader["images_per_second"].items()
    ]
    stages = [
        [name, *(f"{milliseconds:.2f}" for milliseconds in spent.values())]
        for name, spent in loader["milliseconds_per_image"].items()
    ]
    return f"""# What 130 million images take

The paper's best models are trained for 350 epochs on ImageNet and 130 million pseudo-labelled images (Tables 5 and 18).
This page works out what that takes with lambdanets: LambdaResNet-152 at 288 pixels, the recipe `imagenet_pseudo`.
`python experiments/scale.py` writes it, from figures of one image: those of processors, disks and labels measured on
{scale["hardware"]["processor"]} ({scale["hardware"]["cores"]} cores), those of devices from the paper (Table 5: 1,620
images/s in training and 6,100 in inference on 8 TPUv3 cores), since this project has measured no device of its own.
`lambdanets train RECIPE --plan --devices N` makes the same calculation for the device it runs on; it is for classification.

## What is stored

| what | how much | from |
|---|---|---|
| 130 million images in shards of {SHARD_IMAGES:,} | {IMAGES * per_image / 1e12:.1f} TB in {shards:,} shards of {SHARD_IMAGES * per_image / 1e9:.2f} GB | {per_image / 1e3:.0f} kB an image, ImageNet's mean |
| the teacher's labels, 5 classes an image | {label_bytes / 1e9:.1f} GB | {selection["label_bytes"] / selection["options"]["rows"]:.1f} bytes a row, measured over {selection["options"]["rows"]:,} rows |
| a selection of 130,000 images a class | {selection["selection_bytes"] / selection["kept"] * 81e6 / 1e9:.1f} GB | {selection["selection_bytes"] / selection["kept"]:.1f} bytes a row kept; Xie et al. keep 81 million, some repeatedly |
| a checkpoint: weights, averages, momentum | {scale["checkpoint_bytes"] / 1e6:.0f} MB, of which two are kept and the best | written in {scale["checkpoint_seconds"]:.1f} s, with checks, on one disk |

Labels are selected in {IMAGES / selection["rows_per_second"]:.0f} s: {selection["rows_per_second"] / 1e6:.2f} million
rows a second with {selection["peak_bytes"] / 2**20:.0f} MiB of memory at most, measured over
{selection["options"]["rows"]:,} rows on two cores ({selection["seconds"]:.0f} s).

## What training takes

A step has 4,096 labelled images and {RATIO} times as many pseudo-labelled ones (the ratio of Noisy Student's larger
models). 350 epochs are those of the labelled images: {steps:,} steps, which see {seen / 1e9:.2f} billion images, and
every pseudo-labelled one {EPOCHS * LABELLED * RATIO / IMAGES:.0f} times. Whoever reads the text as 350 passes over all
130 million images needs the time in the fourth column.

{markdown_table(list(rows[0]), *(list(row.values()) for row in rows))}

- **Reading**: what all devices together must be given, {per_image / 1e3:.0f} kB an image. Each process reads shards of
  its own, so that machines do not read the same ones in an epoch.
- **Processor cores**: an image takes {1000 * core:.1f} ms of a core to be decoded, cropped and augmented for 288 pixels
  (RandAugment, two layers), {scale["milliseconds_an_image"]["224"]:.1f} ms for 224 and
  {scale["milliseconds_an_image"]["128"]:.1f} ms for 128: {TRAIN_RATE * core:.1f} cores a device here.
- **Failures**: one in {HOURS_A_FAILURE:,.0f} device hours, as published for a run on 16,384 GPUs (419 in 54 days,
  arXiv:2407.21783). After one, `torchrun --max-restarts` starts the processes again and the run goes on from its last
  checkpoint: with one every 500 steps, {lost:.0f} steps are lost on average, {lost / steps:.2%} of the run.
- **Checkpoints**: {steps // 500} in the run; at {scale["checkpoint_seconds"]:.1f} s each,
  {duration(steps // 500 * scale["checkpoint_seconds"])} in all.
- **The same result**: a run that goes on with as many processes has the same images in the same steps. Losses are equal
  to the last bit on processors, which is tested with two processes on two (simulated) machines; on GPUs kernels that sum
  in no fixed order can differ in rounding.
- **Fewer devices**: the step stays as it is. Each device computes its share in parts that fit into its memory, whose
  gradients add up; batch norm then has the statistics of a part.

## Reading images

Loaders of the same {loader["settings"]["images"]} JPEG files of {loader["kilobytes_per_image"]:.0f} kB (1024 x 768
pixels), {loader["settings"]["workers"]} workers on two cores, the same random crops of 224 pixels and flips, epochs in
turns: median images per second of {loader["settings"]["rounds"]} epochs each, the lowest and the highest.

{markdown_table(["loader", "images/s", "lowest to highest"], *rates)}

Where an image's time goes in one process, milliseconds: nine tenths and more into decoding and cropping, which are the
same for all; what shards add is in the first column.

{markdown_table(["images from", "read", "decode", "transform", "collate"], *stages)}

`python experiments/loader.py --out loader.json` measures both.

## The commands

    lambdanets shard IMAGES SHARDS --unlabelled --processes 32
    torchrun --rdzv-backend c10d --rdzv-endpoint HOST:29500 --nnodes 8 --nproc-per-node 8 -m -- lambdanets pseudo-label TEACHER SHARDS LABELS
    lambdanets pseudo-label select LABELS SELECTION --confidence 0.3 --per-class 130000
    torchrun --rdzv-backend c10d --rdzv-endpoint HOST:29500 --nnodes 8 --nproc-per-node 8 --max-restarts 100 -m -- lambdanets train imagenet_pseudo \\
        --data IMAGENET_SHARDS --pseudo-labels SELECTION --pseudo-images SHARDS --run DIR

[`examples/slurm.sh`](../examples/slurm.sh) is the last one as a job of SLURM.
"""  # noqa: E501


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "scale.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/scale.md")
    options = parser.parse_args()
    if options.measure:
        options.out.write_text(json.dumps(measure(), indent=1) + "\n")
    names = ("scale.json", "select.json", "loader.json")
    options.page.write_text(page(*(json.loads((RESULTS / name).read_text()) for name in names)), encoding="utf-8")


if __name__ == "__main__":
    main()
