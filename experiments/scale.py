"""Writes docs/scale.md: the estimated cost of 350 epochs with 130 million pseudo-labeled images.

    python experiments/scale.py [--page docs/scale.md]

Bytes and milliseconds per image on a CPU core, per checkpoint and per row of labels were measured, by scripts of the
commits in the results. The images/s of devices are those of the paper (Table 5).
"""

import statistics
from typing import Any

from pages import RESULTS, PageScript

from lambdanets.progress import format_duration
from lambdanets.text_tables import markdown_table
from lambdanets_lab.results import read_results

NUM_PSEUDO_LABELED, NUM_LABELED = 130_000_000, 1_281_167
EPOCHS = 350  # over the labeled images
PSEUDO_RATIO = 14  # of pseudo-labeled to labeled images in a batch
DEVICES = (8, 64, 512)
TRAIN_RATE, LABEL_RATE = 1620 / 8, 6100 / 8  # images/s of a TPUv3 core, LambdaResNet-152 at 288 (Table 5)
HOURS_PER_FAILURE = 54 * 24 * 16_384 / 419  # device hours: 419 failures in 54 days on 16,384 GPUs (arXiv:2407.21783)
SHARD_IMAGES = 10_000


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
    target = PageScript(__doc__, "scale.md").parse_args().page
    results = (read_results(RESULTS / f"xeon-2-cores/{name}.json") for name in ("scale", "select", "loader"))
    target.write_text(page(*results), encoding="utf-8")


if __name__ == "__main__":
    main()
