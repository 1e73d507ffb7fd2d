"""Compares the throughput of data loaders on the same JPEG files: timm, lambdanets (folder, shards), webdataset.

    python experiments/loader.py --out loader.json [--data FOLDER] [--images 512] [--workers 2]

Needs webdataset. --data is a folder with one sub-folder per class; without it, the script generates images of 200 to
300 KB. Every loader applies the same random crops and flips with the same number of workers. The loaders take turns,
one epoch each, so changes in the machine's speed affect all of them. Then the stages of loading are timed in one
process.
"""

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scale import generate_jpeg

from lambdanets.data.datasets import Splits, open_evaluation_images
from lambdanets.data.images import read_image
from lambdanets.data.labeled_images import ImageFiles, SelectedImages
from lambdanets.data.loader import ImageBatches
from lambdanets.data.shards import ShardedImages, open_shards
from lambdanets.tasks.classification.recipe import ClassificationRecipe
from lambdanets.tasks.classification.task import make_transform
from lambdanets.text_tables import text_table
from lambdanets_lab.results import write_results
from lambdanets_lab.shards import write_shards

CLASSES = 4


def make_images(folder: Path, count: int) -> None:
    """Write JPEG files of noise, about as large as photographs of 1024 x 768 pixels."""
    for number in range(count):
        class_folder = folder / f"class{number % CLASSES}"
        class_folder.mkdir(parents=True, exist_ok=True)
        content = generate_jpeg(number, width=1024, height=768, quality=82)
        (class_folder / f"{number:05}.jpg").write_bytes(content)


def link_images(folder: Path, count: int, out: Path) -> None:
    """Create symbolic links to `count` images, evenly spread over the classes, in the folder `out`."""
    found = open_evaluation_images(str(folder))
    images, classes = found.images, found.classes
    for number in np.linspace(0, len(images) - 1, min(count, len(images)), dtype=int).tolist():
        link = out / classes[images.labels[number]] / f"{number:07}{images.paths[number].suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(images.paths[number].resolve())


def make_loaders(folder: Path, shards: Path, transform: Callable[..., Any], batch: int, workers: int) -> dict[str, Any]:
    """The loaders by name; each yields one epoch of tuples whose first element is a batch of images."""
    import timm.data
    import webdataset

    dataset = timm.data.create_dataset("", root=str(folder))
    timm_loader = timm.data.create_loader(
        dataset,
        input_size=(3, 224, 224),
        batch_size=batch,
        is_training=True,
        use_prefetcher=False,
        num_workers=workers,
        device=torch.device("cpu"),
    )
    dataset.transform = transform  # replaces the transform that create_loader has set
    sources: dict[str, ImageFiles | ShardedImages] = {
        "lambdanets, folder": open_evaluation_images(str(folder)).images,
        "lambdanets, shards": open_shards(str(shards))[0]["train"],
    }
    urls = sorted(str(path) for path in shards.glob("train-*.tar"))
    pipeline = webdataset.WebDataset(urls, shardshuffle=len(urls), detshuffle=True, seed=0).shuffle(1000)
    pipeline = pipeline.decode("pilrgb").to_tuple("jpg;jpeg;png", "cls").map_tuple(transform).batched(batch)
    return {
        "timm, folder": timm_loader,
        **{
            name: ImageBatches(images, transform, channels=3, batch_size=batch, seed=0, training=True, workers=workers)
            for name, images in sources.items()
        },
        "webdataset, shards": webdataset.WebLoader(
            pipeline, batch_size=None, num_workers=workers, persistent_workers=workers > 0
        ),
    }


def images_per_second(loader: Iterable[Any]) -> float:
    """Measure the throughput of one epoch."""
    start = time.perf_counter()
    images = sum(len(batch[0]) for batch in loader)
    return images / (time.perf_counter() - start)


def time_stages(images: ImageFiles | ShardedImages, transform: Callable[..., Any], count: int) -> dict[str, float]:
    """Measure the milliseconds per image of each stage in one process, in random order and batches of 32."""
    totals = dict.fromkeys(("read", "decode", "transform", "collate"), 0.0)
    order = np.random.default_rng(0).permutation(len(images))[:count].tolist()
    images.load(order[0])  # opens the first shard
    for numbers in (order[first : first + 32] for first in range(0, len(order), 32)):
        tensors = []
        for number in numbers:
            times = [time.perf_counter()]
            content, _ = images.file(number)
            times.append(time.perf_counter())
            image = read_image(io.BytesIO(content), "an image").convert("RGB")
            times.append(time.perf_counter())
            tensors.append(transform(image))
            times.append(time.perf_counter())
            for stage, seconds in zip(totals, np.diff(times).tolist(), strict=False):
                totals[stage] += seconds
        start = time.perf_counter()
        torch.stack(tensors)
        totals["collate"] += time.perf_counter() - start
    return {stage: 1000 * seconds / len(order) for stage, seconds in totals.items()}


def rotate(names: list[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yield the round and each name once per round, beginning with a different name in each."""
    for number in range(rounds):
        begin = number % len(names)
        yield from ((number, name) for name in names[begin:] + names[:begin])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    parser.add_argument("--data", type=Path, help="folder with one sub-folder per class; default: generated images")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--images-per-shard", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="epochs per loader")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transform = make_transform(ClassificationRecipe(image_size=224, channels=3))
    with tempfile.TemporaryDirectory(prefix="lambdanets-loader-") as scratch:
        folder, shards = Path(scratch, "images"), Path(scratch, "shards")
        if options.data is None:
            make_images(folder, options.images)
        else:
            link_images(options.data, options.images, folder)
        found = open_evaluation_images(str(folder))
        images, classes = found.images, found.classes
        sample = SelectedImages(images, [0], [images.labels[0]])  # a validation split is required, but not timed
        write_shards(Splits(images, sample, classes, ""), shards, images_per_shard=options.images_per_shard)
        kilobytes = sum(path.stat().st_size for path in images.paths) / len(images) / 1000
        print(f"{len(images)} images of {kilobytes:.0f} KB on average, {options.workers} workers\n")

        loaders = make_loaders(folder, shards, transform, options.batch_size, options.workers)
        rates: dict[str, list[float]] = {name: [] for name in loaders}
        for loader in loaders.values():
            images_per_second(loader)  # starts the workers, and reads the files into the page cache
        for _, name in rotate(list(loaders), options.rounds):
            rates[name].append(images_per_second(loaders[name]))
        rows = [
            [name, *(f"{value:.1f}" for value in (statistics.median(values), min(values), max(values)))]
            for name, values in rates.items()
        ]
        print(text_table([["", "images/s", "min", "max"], *rows]))

        sources: dict[str, ImageFiles | ShardedImages] = {
            "folder": images,
            "shards": open_shards(str(shards))[0]["train"],
        }
        stages = {name: time_stages(source, transform, 256) for name, source in sources.items()}
    rows = [[name, *(f"{milliseconds:.3f}" for milliseconds in times.values())] for name, times in stages.items()]
    print("\n" + text_table([["ms per image", *stages["folder"]], *rows]))
    result = {
        "settings": {key: value for key, value in vars(options).items() if not isinstance(value, Path)},
        "kilobytes_per_image": kilobytes,
        "images_per_second": rates,
        "milliseconds_per_image": stages,
    }
    write_results(options.out, result)


if __name__ == "__main__":
    main()
