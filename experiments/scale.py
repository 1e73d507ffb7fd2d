"""Writes docs/scale.md: the estimated cost of 350 epochs with 130 million pseudo-labeled images.

    python experiments/scale.py --measure [--out scale.json]   measure this machine (one minute)
    python experiments/scale.py [--page docs/scale.md]         write the page from experiments/results

Bytes and milliseconds per image on a CPU core, per checkpoint and per row of labels are measured. The images/s of
devices are those of the paper (Table 5).
"""

import io
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pages import RESULTS, Script
from PIL import Image

from lambdanets.data.images import read_image
from lambdanets.models import create_model
from lambdanets.progress import format_duration
from lambdanets.recipes import find_recipe
from lambdanets.tasks.classification.task import make_transform
from lambdanets.text_tables import markdown_table
from lambdanets.training.checkpoints import AtomicCheckpointIO
from lambdanets_lab.results import read_results, write_results

IMAGE_SIZES = {"50_128": 128, "152_224": 224, "152_288": 288}  # by the suffix of the imagenet_350 recipe
NUM_PSEUDO_LABELED, NUM_LABELED = 130_000_000, 1_281_167
EPOCHS = 350  # over the labeled images
PSEUDO_RATIO = 14  # of pseudo-labeled to labeled images in a batch
DEVICES = (8, 64, 512)
TRAIN_RATE, LABEL_RATE = 1620 / 8, 6100 / 8  # images/s of a TPUv3 core, LambdaResNet-152 at 288 (Table 5)
HOURS_PER_FAILURE = 54 * 24 * 16_384 / 419  # device hours: 419 failures in 54 days on 16,384 GPUs (arXiv:2407.21783)
SHARD_IMAGES = 10_000


def measure() -> dict[str, Any]:
    """Measure bytes and milliseconds per image, and bytes and seconds per checkpoint, with one thread."""
    torch.set_num_threads(1)
    files = [generate_jpeg(number) for number in range(64)]
    milliseconds = {}
    for name, size in IMAGE_SIZES.items():
        recipe = find_recipe(f"imagenet_350_{name}")
        transform = make_transform(recipe)
        milliseconds[str(size)] = 1000 * median_seconds(partial(prepare_all, files, transform)) / len(files)
    model = create_model("lambda_resnet152")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copies = [{name: tensor.clone() for name, tensor in state.items()} for _ in range(2)]
    checkpoint = {"state_dict": state, "current": copies[0], "momentum": copies[1]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "last.ckpt")
        seconds = median_seconds(lambda: AtomicCheckpointIO().save_checkpoint(checkpoint, path))
        checkpoint_bytes = path.stat().st_size
    return {
        "file_bytes": statistics.mean(map(len, files)),
        "milliseconds_per_image": milliseconds,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "checkpoint_bytes": checkpoint_bytes,
        "checkpoint_seconds": seconds,
    }


def prepare_all(files: list[bytes], transform: Any) -> list[Any]:
    """Decode and transform images, as a worker of a data loader does."""
    return [transform(read_image(io.BytesIO(file), "")) for file in files]


def median_seconds(function: Any) -> float:
    """The median seconds of three calls after a warm-up call."""
    function()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def generate_jpeg(seed: int, width: int = 500, height: int = 375, quality: int = 92) -> bytes:
    """A JPEG file of noise with equal power in each octave; by default about as large as a file of ImageNet."""
    generator = np.random.default_rng(seed)
    pixels = np.full((height, width, 3), 128.0, np.float32)
    for octave in range(1, int(np.log2(height))):
        small = np.clip(128 + generator.normal(0, 22, ((height >> octave) + 1, (width >> octave) + 1, 3)), 0, 255)
        layer = Image.fromarray(small.astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
        pixels += np.asarray(layer, np.float32) - 128
    file = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=quality)
    return file.getvalue()


def page(scale: dict[str, Any], selection: dict[str, Any], loader: dict[str, Any]) -> str:
    """The text of docs/scale.md."""
    bytes_per_image = 138e9 / NUM_LABELED  # of ImageNet
    images_seen = EPOCHS * NUM_LABELED * (1 + PSEUDO_RATIO)
    seconds_per_image = scale["milliseconds_per_image"]["288"] / 1000  # on one core
    shards = -(-NUM_PSEUDO_LABELED // SHARD_IMAGES)
    label_bytes = selection["label_bytes"] / selection["options"]["rows"] * NUM_PSEUDO_LABELED
    rows = []
    for devices in DEVICES:
        seconds = images_seen / (TRAIN_RATE * devices)
        hours = seconds / 3600
        failures = hours * devices / HOURS_PER_FAILURE
        row = {
            "devices": str(devices),
            "labeling": format_duration(NUM_PSEUDO_LABELED / (LABEL_RATE * devices)),
            "training": format_duration(seconds),
            "350 passes over all": format_duration(EPOCHS * NUM_PSEUDO_LABELED / (TRAIN_RATE * devices)),
            "images/s": f"{TRAIN_RATE * devices:,.0f}",
            "reading": f"{TRAIN_RATE * devices * bytes_per_image / 1e6:,.0f} MB/s",
            "CPU cores": f"{TRAIN_RATE * devices * seconds_per_image:,.0f}",
            "failures": f"{failures:.1f}",
            "images per device and step": f"{-(-4096 // devices)} + {-(-4096 * PSEUDO_RATIO // devices)}",
        }
        rows.append(row)
    steps = EPOCHS * -(-NUM_LABELED // 4096)
    lost_steps = 500 / 2  # on average after a failure
    rates = [
        [name, f"{statistics.median(values):.0f}", f"{min(values):.0f}", f"{max(values):.0f}"]
        for name, values in loader["images_per_second"].items()
    ]
    stages = [
        [name, *(f"{milliseconds:.2f}" for milliseconds in times.values())]
        for name, times in loader["milliseconds_per_image"].items()
    ]
    return f"""# Training on 130 million images

    lambdanets shard IMAGES SHARDS --unlabeled --threads 32
    torchrun --rdzv-backend c10d --rdzv-endpoint HOST:29500 --nnodes 8 --nproc-per-node 8 -m -- lambdanets pseudo-label TEACHER SHARDS LABELS
    lambdanets pseudo-label select LABELS SELECTION --confidence 0.3 --per-class 130000
    torchrun --rdzv-backend c10d --rdzv-endpoint HOST:29500 --nnodes 8 --nproc-per-node 8 --max-restarts 100 -m -- lambdanets train imagenet_pseudo \\
        --data IMAGENET_SHARDS --pseudo-labels SELECTION --pseudo-images SHARDS --run DIR

These commands train the paper's best model: LambdaResNet-152 at 288 pixels, 350 epochs on ImageNet and 130 million pseudo-labeled images
(Tables 5 and 18). First write ImageNet as shards (`lambdanets shard IMAGENET IMAGENET_SHARDS`) and
train a teacher, for example `lambdanets train imagenet_350_152_288 --data IMAGENET_SHARDS --run TEACHER`; the paper's images and teacher are not public.
[`examples/slurm.sh`](../examples/slurm.sh) runs the last one as a SLURM job.
`lambdanets train imagenet_pseudo --dry-run` with the same options checks the data and times a few steps on this machine.

This page estimates storage, time and processor cores. Bytes and milliseconds per image were measured on {scale["hardware"]["processor"]} ({scale["hardware"]["cores"]}
cores), November 2026. The images/s of devices are from the paper (Table 5: 1,620 in training and 6,100 in inference on 8 TPUv3
cores), since this project has not measured any. `python experiments/scale.py` writes the page.

## Training

{markdown_table(list(rows[0]), *(list(row.values()) for row in rows))}

- **Epochs.** A step has 4,096 labeled images and {PSEUDO_RATIO} times as many pseudo-labeled ones (the ratio of Noisy Student's larger
  models). Epochs count the labeled images: {steps:,} steps see {images_seen / 1e9:.2f} billion images, and each
  pseudo-labeled image {EPOCHS * NUM_LABELED * PSEUDO_RATIO / NUM_PSEUDO_LABELED:.0f} times. The fourth column is for another interpretation of the paper, 350 passes over all 130 million images.
- **Reading.** The data rate of all devices together, at {bytes_per_image / 1e3:.0f} kB per image. Each rank reads different shards in
  an epoch.
- **Processor cores.** Decoding, cropping and augmenting (RandAugment, two layers) an image takes {1000 * seconds_per_image:.1f} ms of one core for 288 pixels,
  {scale["milliseconds_per_image"]["224"]:.1f} ms for 224 and {scale["milliseconds_per_image"]["128"]:.1f} ms for 128: {TRAIN_RATE * seconds_per_image:.1f} cores per device here.
- **Failures.** The estimate is one failure per {HOURS_PER_FAILURE:,.0f} device hours, as in a published run on 16,384 GPUs (419 in 54 days,
  arXiv:2407.21783). After a failure, `torchrun --max-restarts` restarts the ranks, and the run resumes from its last
  checkpoint. With a checkpoint every 500 steps, a failure loses {lost_steps:.0f} steps on average, {lost_steps / steps:.2%} of the run.
- **Checkpoints.** The run writes {steps // 500} checkpoints in {scale["checkpoint_seconds"]:.1f} s each, {format_duration(steps // 500 * scale["checkpoint_seconds"])} in total.
- **Reproducibility.** With the same world size, a resumed run has the same images in the same steps. On CPUs losses are
  bit-identical, which is tested with two ranks on two simulated nodes; on GPUs, kernels without a fixed order of summation can round differently.
- **Fewer devices.** The global batch stays the same. Each device accumulates gradients over micro-batches that fit into its memory; batch
  norm then uses the statistics of a micro-batch.

## Storage

| data | size | basis of the estimate |
|---|---|---|
| 130 million images in shards of {SHARD_IMAGES:,} | {NUM_PSEUDO_LABELED * bytes_per_image / 1e12:.1f} TB in {shards:,} shards of {SHARD_IMAGES * bytes_per_image / 1e9:.2f} GB | {bytes_per_image / 1e3:.0f} kB per image, the mean of ImageNet |
| the labels of the teacher, 5 classes per image | {label_bytes / 1e9:.1f} GB | {selection["label_bytes"] / selection["options"]["rows"]:.1f} bytes per row, measured over {selection["options"]["rows"]:,} rows |
| a selection of 130,000 images per class | {selection["selection_bytes"] / selection["kept"] * 81e6 / 1e9:.1f} GB | {selection["selection_bytes"] / selection["kept"]:.1f} bytes per distinct image; 81 million distinct images as in Xie et al., since a repeated image is stored once with its number of copies |
| a checkpoint: weights, EMA, momentum | {scale["checkpoint_bytes"] / 1e6:.0f} MB each; the last two and the best are kept | written in {scale["checkpoint_seconds"]:.1f} s including checks, on one disk |

Selecting the labels takes {NUM_PSEUDO_LABELED / selection["rows_per_second"]:.0f} s and at most {selection["peak_bytes"] / 2**20:.0f} MiB of memory: {selection["rows_per_second"] / 1e6:.2f} million
rows/s, measured over {selection["options"]["rows"]:,} rows on two cores ({selection["seconds"]:.0f} s).

## Reading images

Images/s of four loaders on the same {loader["settings"]["images"]} JPEG files of {loader["kilobytes_per_image"]:.0f} kB (1024 x 768
pixels): {loader["settings"]["workers"]} workers on two cores, the same random crops of 224 pixels and flips, {loader["settings"]["rounds"]} epochs per
loader, one epoch of each in turn.

{markdown_table(["loader", "images/s, median", "min", "max"], *rates)}

Milliseconds per image in one process. Decoding and transforming, which are the same for all loaders, take more than 90% of the time:

{markdown_table(["images from", "read", "decode", "transform", "collate"], *stages)}

`experiments/loader.py` of commit 0c137189 measured both.
"""  # noqa: E501


def main() -> None:
    folder = RESULTS / "xeon-2-cores"
    parser = Script(__doc__, "scale.md", folder / "scale.json")
    parser.add_argument("--measure", action="store_true", help="measure this machine before writing the page")
    options = parser.parse_args()
    if options.measure:
        write_results(options.out, measure())
    paths = (options.out, folder / "select.json", folder / "loader.json")
    options.page.write_text(page(*map(read_results, paths)), encoding="utf-8")


if __name__ == "__main__":
    main()
