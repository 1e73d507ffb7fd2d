"""Measures the time and memory of selecting from synthetic pseudo-labels, 100 million by default.

python experiments/selection.py FOLDER [--out FILE] writes labels into the new folder FOLDER, selects from them in
another process, and removes FOLDER. The frequency of class c is proportional to 1 / (10 + c).
2% of the confidences are 1, the others are u ** 0.75 with u uniform in [0, 1).
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from lambdanets.records import write_json
from lambdanets_lab.pseudo.tables import DESCRIPTION, Labels, write_table
from lambdanets_lab.results import write_results

CHILD = """
import json, sys, time
from pathlib import Path
from lambdanets_lab.pseudo.tables import select
def peak_memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
imported = peak_memory()
start = time.monotonic()
report = select(Path(sys.argv[1]), Path(sys.argv[2]), confidence=float(sys.argv[3]), per_class=int(sys.argv[4]))
seconds = time.monotonic() - start
print(json.dumps({"seconds": seconds, "peak_bytes": peak_memory(), "imported_bytes": imported,
                  "confident": report.confident, "kept": report.kept, "images": report.images,
                  "short": len(report.short), "without": len(report.without)}))
"""


@dataclass(frozen=True)
class Size:
    """Numbers of rows, rows per file, classes, and classes per row (`top`)."""

    rows: int
    shard_rows: int
    classes: int
    top: int


def generate(folder: Path, size: Size) -> None:
    """Write synthetic label tables, one file at a time."""
    folder.mkdir(parents=True)
    names = tuple(f"train-{shard:05}" for shard in range(-(-size.rows // size.shard_rows)))
    labels = Labels(tuple(f"class {i}" for i in range(size.classes)), {"model": "synthetic"}, size.top, names)
    frequency = 1 / (10 + np.arange(size.classes))
    cumulative = np.cumsum(frequency / frequency.sum())
    for shard, first in enumerate(range(0, size.rows, size.shard_rows)):
        generator = np.random.default_rng((0, shard))
        n = min(size.shard_rows, size.rows - first)
        best = np.minimum(np.searchsorted(cumulative, generator.random(n)), size.classes - 1)
        confidence = np.where(generator.random(n) < 0.02, 1, generator.random(n) ** 0.75)
        others = [np.minimum(confidence, (1 - confidence) / 2**i) for i in range(1, size.top)]
        keys = [f"n{number:010}" for number in range(first, first + n)]
        classes = (best[:, None] + 7 * np.arange(size.top)) % size.classes
        probabilities = np.stack([confidence, *others], axis=1)
        write_table(folder / f"{names[shard]}.parquet", keys, np.arange(n), classes, probabilities)
    write_json(folder / DESCRIPTION, asdict(labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder for labels and selection, which is created and removed")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--shard-rows", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--confidence", type=float, default=0.3)
    parser.add_argument("--per-class", type=int, default=130_000)
    parser.add_argument("--out", type=Path, help="JSON file for the measurements")
    options = parser.parse_args()
    size = Size(options.rows, options.shard_rows, options.classes, options.top)
    labels, out = options.folder / "labels", options.folder / "selection"
    options.folder.mkdir(parents=True)
    try:
        start = time.monotonic()
        generate(labels, size)
        print(f"{size.rows:,} rows written in {time.monotonic() - start:.0f} s", flush=True)
        command = [sys.executable, "-c", CHILD, labels, out, str(options.confidence), str(options.per_class)]
        measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{measured['seconds']:.1f} s, peak memory {measured['peak_bytes'] / 2**20:.0f} MiB", flush=True)
        sizes = {
            name: sum(path.stat().st_size for path in folder.iterdir())
            for name, folder in (("label_bytes", labels), ("selection_bytes", out))
        }
        # tests/lab/pseudo compares small selections row by row; here each class must have its number of images
        complete = size.classes - measured["without"]
        assert measured["images"] == complete * options.per_class
    finally:
        shutil.rmtree(options.folder)
    if options.out:
        settings = {name: value for name, value in vars(options).items() if name not in ("folder", "out")}
        rate = {"rows_per_second": size.rows / measured["seconds"]}
        write_results(options.out, {"options": settings, **measured, **rate, **sizes}, ["pyarrow"])


if __name__ == "__main__":
    main()
