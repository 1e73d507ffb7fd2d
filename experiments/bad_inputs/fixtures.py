"""Valid images, shards, trained models and so on, each created when an input first uses it."""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .running import run_command
from .server import Server, closed_url

SMALL_RECIPE = "--channels 3 --image-size 8 --epochs 1 --batch-size 8 --learning-rate 0.03"
SMALL_DETECTION_RECIPE = (
    "--image-size 32 --levels 2 3 --pyramid-channels 8 --box-layers 1 16 --mask-layers 1 --proposals 10 "
    "--sampled-regions 8 --max-detections 5 --epochs 1 --batch-size 2 --warmup-epochs 0.5"
)
DATA_OPTIONS = "--images {coco}/train --validation-data {coco}/val.json --validation-images {coco}/val"
# Commands that create a fixture; {out} is its path, other names in braces are the fixtures that it needs.
COMMANDS = {
    "run": f"train --data {{images}} {SMALL_RECIPE} --run {{out}}",
    "shards": "shard {images} {out} --images-per-shard 4 --processes 1",
    "labels": "pseudo-label {run} {shards} {out}",
    "selection": "pseudo-label select {labels} {out} --confidence 0",
    "detector": f"detect train --data {{coco}}/train.json {DATA_OPTIONS} {SMALL_DETECTION_RECIPE} --run {{out}}",
    "comparison": f"compare scope --data {{images}} {SMALL_RECIPE} --seeds 0 --variants 3x3 --out {{out}}",
    "measured": "benchmark scaling --sides 4 --lengths 8 --repeats 1 --seconds 0.01 --out {out}",
}
FUNCTIONS: dict[str, Callable[[Path], object]] = {}  # functions that create a fixture at a path


class Fixtures(Mapping[str, Any]):
    """Paths in a folder by name, and two URLs: {server} sends faulty responses, nothing listens at {closed}."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server: Server | None = None

    def close(self) -> None:
        """Stop the server, if it runs."""
        if self._server is not None:
            self._server.close()

    def __getitem__(self, name: str) -> Any:
        if name == "closed":
            return closed_url()
        if name == "server":
            self._server = self._server or Server()
            return self._server.url
        out = self._folder / name
        if out.exists():
            return out
        if name in FUNCTIONS:
            FUNCTIONS[name](out)
        elif name in COMMANDS:
            needed = {other: self[other] for other in self if f"{{{other}}}" in COMMANDS[name]}
            code, output = run_command(shlex.split(COMMANDS[name].format(out=out, **needed)), self._folder)
            if code != 0:
                raise RuntimeError(f"the command that creates {name} failed:\n{output}")
        else:
            raise KeyError(name)
        return out

    def __iter__(self) -> Iterator[str]:
        return iter((*FUNCTIONS, *COMMANDS))

    def __len__(self) -> int:
        return len(FUNCTIONS) + len(COMMANDS)


def noise(seed: int, height: int = 12, width: int = 10, brightness: int = 128) -> Image.Image:
    """An image of colored noise."""
    pixels = np.random.default_rng(seed).normal(brightness, 40, (height, width, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def images(out: Path) -> None:
    """A folder with two classes, 8 images each."""
    for name, brightness in (("dark", 90), ("light", 165)):
        (out / name).mkdir(parents=True)
        for number in range(8):
            noise(number + brightness, brightness=brightness).save(out / name / f"{number}.png")


def photo(out: Path) -> None:
    """An image file without a suffix."""
    noise(0).save(out, "PNG")


def coco(out: Path) -> None:
    """train.json and train/, val.json and val/, each with two annotated images of 30 x 20 pixels."""
    for split in ("train", "val"):
        (out / split).mkdir(parents=True)
        for number in (1, 2):
            noise(number, 20, 30).save(out / split / f"{number}.png")
        (out / f"{split}.json").write_text(json.dumps(instances()))


def instances() -> dict[str, list[dict[str, object]]]:
    """COCO instances: a square in each of the two images, in two categories."""
    square = [2, 3, 18, 3, 18, 15, 2, 15]
    fields = {"bbox": [2, 3, 16, 12], "area": 192, "iscrowd": 0, "segmentation": [square]}
    return {
        "images": [{"id": number, "file_name": f"{number}.png", "height": 20, "width": 30} for number in (1, 2)],
        "annotations": [{"id": number, "image_id": number, "category_id": 3, **fields} for number in (1, 2)],
        "categories": [{"id": 3, "name": "three"}, {"id": 7, "name": "seven"}],
    }


FUNCTIONS |= {"images": images, "photo": photo, "coco": coco}
