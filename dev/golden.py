"""Trains short runs with an earlier commit and with this tree: the weights must be bit-identical.

    python dev/golden.py COMMIT --work FOLDER

One run of each task with one rank and with two, and one that the earlier commit begins, SIGTERM
stops, and this tree resumes; then this tree evaluates the earlier commit's models, and predicts
with the packaged ones as it did. Both sides use this tree's compiled library. What differs is
printed, with exit code 1. A second call continues: FOLDER keeps the runs of each commit.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[1]
LAST = "checkpoints/last.ckpt"
LIBRARIES = "src/lambdanets/ops/position/libraries"
SMALL = "--training-images 16 --image-size 64 --batch-size 4 --epochs 2"
COMMANDS = {
    "classification": "train digits --training-images 400 --epochs 3 --ema-decay 0.9",
    "detection": f"train scattered_digits {SMALL}",
    "segmentation": f"train digit_masks {SMALL} --model-options scope 7",
}


def lambdanets(arguments: str) -> list[str]:
    return [sys.executable, "-m", "lambdanets", *arguments.split()]


def environment(tree: Path) -> dict[str, str]:
    """Modules come from a tree, and one thread computes the same on any machine."""
    paths = os.pathsep.join(str(tree / folder) for folder in ("src", "lab"))
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def run(tree: Path, arguments: str) -> None:
    command = lambdanets(arguments)
    result = subprocess.run(command, env=environment(tree), capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{tree}: {arguments}: exit code {result.returncode}\n{result.stderr}")


def interrupt(tree: Path, arguments: str, folder: Path) -> None:
    """Train, and send SIGTERM in the middle of the second epoch."""
    process = subprocess.Popen(lambdanets(arguments), env=environment(tree))
    metrics = folder / "metrics.csv"
    while process.poll() is None:
        rows = metrics.read_text().splitlines() if metrics.is_file() else []
        if any(row.split(",")[1:2] == ["2"] for row in rows):
            process.send_signal(signal.SIGTERM)
            process.wait()
        time.sleep(0.02)
    if (folder / "result.json").is_file():
        raise SystemExit(f"{arguments} ended before it could be interrupted")


def weights_hash(folder: Path) -> str:
    """The SHA-256 of the names, shapes and bytes of a run's trained weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(folder / "weights.safetensors").items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def result(folder: Path) -> dict[str, Any]:
    """The scores and the hash of the weights of a finished run."""
    fields = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    names = ("top1", "bbox", "segm", "dice", "iou", "boundary_f1")
    scores = {name: fields[name] for name in names if name in fields}
    return scores | {"weights": weights_hash(folder)}


def train_golden(tree: Path, work: Path) -> None:
    """Train the earlier commit's runs that FOLDER does not have."""
    for task, command in COMMANDS.items():
        for ranks in (1, 2):
            folder = work / f"{task}-{ranks}"
            run(tree, f"{command} --devices {ranks} --run {folder}")
        folder = work / f"{task}-interrupted"
        if not folder.exists():
            interrupt(tree, f"{command} --run {folder}", folder)


def renew_data_hash(path: Path, other: Path) -> None:
    """Replace the hash of the data in a checkpoint by that in another: versions may hash the same data otherwise."""
    checkpoint, renewed = (torch.load(each, weights_only=False) for each in (path, other))
    checkpoint["callbacks"]["KeepLast"]["data"] = renewed["callbacks"]["KeepLast"]["data"]
    torch.save(checkpoint, path)


def predictions(tree: Path, images: Path, out: Path) -> dict[str, str]:
    """The files that the packaged models write for images, by name, as SHA-256."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    run(tree, f"predict digits {images} --out {out / 'digits.jsonl'}")
    run(tree, f"predict nuclei {images} --out {out / 'nuclei'}")
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def compare(golden: Path, work: Path, base: Path) -> Iterator[str]:
    """What this tree does otherwise, a line each."""
    for task, command in COMMANDS.items():
        for ranks in (1, 2):
            folder = work / f"{task}-{ranks}"
            run(ROOT, f"{command} --devices {ranks} --run {folder}")
            if result(folder) != result(golden / folder.name):
                yield f"{task}, {ranks} ranks: {result(golden / folder.name)} is now {result(folder)}"
        resumed = work / f"{task}-interrupted"
        shutil.copytree(golden / resumed.name, resumed)
        renew_data_hash(resumed / LAST, work / f"{task}-1" / LAST)
        run(ROOT, f"train --resume {resumed}")
        if weights_hash(resumed) != weights_hash(golden / f"{task}-1"):
            yield f"{task}: the resumed run has other weights"
        run(ROOT, f"evaluate {golden / f'{task}-1'} --out {work / f'{task}-evaluated'}")
    images = work / "images"
    images.mkdir()
    for page_image in sorted((ROOT / "docs").rglob("*.png"))[:3]:
        shutil.copy(page_image, images)
    before, after = predictions(base, images, work / "then"), predictions(ROOT, images, work / "now")
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"packaged models: {name} differs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args()
    resolve = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--short", f"{options.commit}^{{commit}}"]
    commit = subprocess.run(resolve, capture_output=True, text=True, check=True).stdout.strip()
    base, golden, now = (options.work.resolve() / commit / name for name in ("base", "golden", "now"))
    if not base.exists():
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(base)], check=True)
        subprocess.run(["git", "-C", str(base), "checkout", "--quiet", commit], check=True)
    shutil.copytree(ROOT / LIBRARIES, base / LIBRARIES, dirs_exist_ok=True)
    train_golden(base, golden)
    shutil.rmtree(now, ignore_errors=True)
    now.mkdir()
    differences = list(compare(golden, now, base))
    print("\n".join(differences) or "bit-identical")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main())
