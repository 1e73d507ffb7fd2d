"""Throughput of data loaders on the same JPEG files: timm's, ours on a folder and on shards, and webdataset's.

    python experiments/loader.py --out loader.json [--data FOLDER] [--images 512] [--workers 2]

Needs webdataset. Without --data (a folder with one sub-folder per class) it makes synthetic images of 200 to 300 KB.
Every loader applies the same random crops and flips with the same number of workers; epochs are interleaved, so that
drift affects all alike. Then one process profiles the stages of loading. Writes a JSON file and prints tables.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from lambdanets.data.datasets import Splits
from lambdanets.data.image_folders import read_class_folders
from lambdanets.data.images import read_image
from lambdanets.data.labeled_images import ImageFiles, SelectedImages
from lambdanets.data.loader import ImageBatches
from lambdanets.data.shards.images import ShardedImages, open_shards
from lambdanets.data.shards.writing import write_shards
from lambdanets.provenance import commit, hardware, versions
from lambdanets.text_tables import text_table
from lambdanets.training.classification.loaders import make_transform
from lambdanets.training.recipe import Recipe

CLASSES = 4
SIDES = (1024, 768)


def make_images(folder: Path, count: int) -> None:
    """Color noise with equal power in each octave, which compresses about as photographs do."""
    random = np.random.default_rng(0)
    for number in range(count):
        pixels = np.full((SIDES[1], SIDES[0], 3), 128.0, np.float32)
        for octave in range(2, 10):
            small = random.normal(0, 24, (SIDES[1] >> octave or 1, SIDES[0] >> octave or 1, 3))
            layer = np.clip(128 + small, 0, 255).astype(np.uint8)
            pixels += np.asarray(Image.fromarray(layer).resize(SIDES, Image.Resampling.BICUBIC), np.float32) - 128
        pixels += random.normal(0, 5, pixels.shape)
        place = folder / f"class{number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(place / f"{number:05}.jpg", quality=89)


def first_images(folder: Path, count: int, place: Path) -> Path:
    """A folder of links to `count` images, evenly spread over the classes."""
    images, classes = read_class_folders(folder)
    for number in np.linspace(0, len(images) - 1, min(count, len(images)), dtype=int).tolist():
        link = place / classes[images.labels[number]] / f"{number:07}{images.paths[number].suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(images.paths[number].resolve())
    return place


def loaders(folder: Path, shards: Path, transform: Callable[..., Any], batch: int, workers: int) -> dict[str, Any]:
    """Iterables over one epoch by name; each yields tuples whose first element is the images."""
    import timm.data
    import webdataset

    dataset = timm.data.create_dataset("", root=str(folder))
    timms = timm.data.create_loader(
        dataset,
        input_size=(3, 224, 224),
        batch_size=batch,
        is_training=True,
        use_prefetcher=False,
        num_workers=workers,
        device=torch.device("cpu"),
    )
    dataset.transform = transform  # replaces the one that create_loader set
    ours: dict[str, ImageFiles | ShardedImages] = {
        "lambdanets, folder": read_class_folders(folder)[0],
        "lambdanets, shards": open_shards(str(shards))[0]["train"],
    }
    urls = sorted(str(path) for path in shards.glob("train-*.tar"))
    pipeline = webdataset.WebDataset(urls, shardshuffle=len(urls), detshuffle=True, seed=0).shuffle(1000)
    pipeline = pipeline.decode("pilrgb").to_tuple("jpg;jpeg;png", "cls").map_tuple(transform).batched(batch)
    return {
        "timm, folder": timms,
        **{
            name: ImageBatches(images, transform, channels=3, batch_size=batch, seed=0, training=True, workers=workers)
            for name, images in ours.items()
        },
        "webdataset, shards": webdataset.WebLoader(
            pipeline, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        ),
    }


def rate(loader: Iterable[Any]) -> float:
    """Images per second of one epoch."""
    start = time.perf_counter()
    images = sum(len(batch[0]) for batch in loader)
    return images / (time.perf_counter() - start)


def stages(images: ImageFiles | ShardedImages, transform: Callable[..., Any], count: int) -> dict[str, float]:
    """Milliseconds per image and stage in one process; images in random order, batches of 32."""
    spent = dict.fromkeys(("read", "decode", "transform", "collate"), 0.0)
    order = np.random.default_rng(0).permutation(len(images))[:count].tolist()
    images.load(order[0])  # opens a shard
    for numbers in (order[first : first + 32] for first in range(0, len(order), 32)):
        tensors = []
        for number in numbers:
            marks = [time.perf_counter()]
            content, _ = images.file(number)
            marks.append(time.perf_counter())
            image = read_image(io.BytesIO(content), "an image").convert("RGB")
            marks.append(time.perf_counter())
            tensors.append(transform(image))
            marks.append(time.perf_counter())
            for stage, seconds in zip(spent, np.diff(marks).tolist(), strict=False):
                spent[stage] += seconds
        start = time.perf_counter()
        torch.stack(tensors)
        spent["collate"] += time.perf_counter() - start
    return {stage: 1000 * seconds / len(order) for stage, seconds in spent.items()}


def rotated(names: list[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Each name once per round, in rotated order."""
    for turn in range(rounds):
        begin = turn % len(names)
        yield from ((turn, name) for name in names[begin:] + names[:begin])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--images-per-shard", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transform = make_transform(Recipe(image_size=224, channels=3))
    with tempfile.TemporaryDirectory(prefix="lambdanets-loader-") as scratch:
        folder, shards = Path(scratch, "images"), Path(scratch, "shards")
        if options.data is None:
            make_images(folder, options.images)
        else:
            first_images(options.data, options.images, folder)
        images, classes = read_class_folders(folder)
        sample = SelectedImages(images, [0], [images.labels[0]])  # data sets need a validation part; it is not timed
        write_shards(Splits(images, sample, classes, ""), shards, images_per_shard=options.images_per_shard)
        kilobytes = sum(path.stat().st_size for path in images.paths) / len(images) / 1000
        print(f"{len(images)} images of {kilobytes:.0f} KB on average, {options.workers} workers\n")

        candidates = loaders(folder, shards, transform, options.batch_size, options.workers)
        rates: dict[str, list[float]] = {name: [] for name in candidates}
        for loader in candidates.values():
            rate(loader)  # starts the workers, and brings the files into memory
        for _, name in rotated(list(candidates), options.rounds):
            rates[name].append(rate(candidates[name]))
        rows = [
            [name, *(f"{value:.1f}" for value in (statistics.median(found), min(found), max(found)))]
            for name, found in rates.items()
        ]
        print(text_table([["", "images/s", "min", "max"], *rows]))

        parts: dict[str, ImageFiles | ShardedImages] = {
            "folder": images,
            "shards": open_shards(str(shards))[0]["train"],
        }
        spent = {name: stages(part, transform, 256) for name, part in parts.items()}
    rows = [[name, *(f"{milliseconds:.3f}" for milliseconds in times.values())] for name, times in spent.items()]
    print("\n" + text_table([["ms per image", *spent["folder"]], *rows]))
    result = {
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
        "settings": {key: value for key, value in vars(options).items() if not isinstance(value, Path)},
        "kilobytes_per_image": kilobytes,
        "images_per_second": rates,
        "milliseconds_per_image": spent,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
