"""Splits the cell nuclei into training, validation and test images.

    python experiments/nuclei_splits.py NUCLEI FOLDER

NUCLEI has instances_train.json, train.tar, instances_val.json and val.tar; FOLDER gets train, validation and test .json
and .tar. Images of each size are sorted by the SHA-256 of their names; of 12, two go to the test set and one to the
validation set.
"""

import argparse
import hashlib
import io
import json
import tarfile
from collections import defaultdict
from pathlib import Path
from typing import Any

SPLITS = ("test", "test", "validation", *["train"] * 9)


def split(data: Path, folder: Path) -> None:
    """Write the training, validation and test set as COCO instances files and tars."""
    folder.mkdir(parents=True, exist_ok=True)
    images: list[tuple[str, dict[str, Any]]] = []
    annotations, files = defaultdict(list), {}
    for source in ("train", "val"):
        content = json.loads((data / f"instances_{source}.json").read_text())
        for annotation in content["annotations"]:
            annotations[source, annotation["image_id"]].append(annotation)
        images += [(source, image) for image in content["images"]]
        with tarfile.open(data / f"{source}.tar") as tar:
            files |= {Path(member.name).name: tar.extractfile(member).read() for member in tar if member.isfile()}
    images.sort(key=lambda pair: hashlib.sha256(pair[1]["file_name"].encode()).digest())
    counts, splits = defaultdict(int), defaultdict(list)
    for source, image in images:
        size = image["height"], image["width"]
        splits[SPLITS[counts[size] % len(SPLITS)]].append((source, image))
        counts[size] += 1
    for name, selected in splits.items():
        objects: list[dict[str, Any]] = []
        with tarfile.open(folder / f"{name}.tar", "w") as tar:
            for number, (source, image) in enumerate(selected, 1):
                first_id = len(objects) + 1
                image_annotations = annotations[source, image["id"]]
                objects += [each | {"image_id": number, "id": first_id + i} for i, each in enumerate(image_annotations)]
                info = tarfile.TarInfo(image["file_name"])
                info.size = len(files[image["file_name"]])
                tar.addfile(info, io.BytesIO(files[image["file_name"]]))
        renumbered = [image | {"id": number} for number, (_, image) in enumerate(selected, 1)]
        coco = {"images": renumbered, "annotations": objects, "categories": content["categories"]}
        (folder / f"{name}.json").write_text(json.dumps(coco))
        print(f"{name}: {len(renumbered)} images, {len(objects)} nuclei")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="NUCLEI")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    split(**vars(parser.parse_args()))
