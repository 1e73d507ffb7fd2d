"""Trained models in ONNX Runtime and OpenVINO: objects of a detector; accuracy, size and time of int8 classifiers.

    python experiments/exported_runs.py --out FILE --run NAME RUN DATA [--run ...] --detector RUN FOLDER    measure
    python experiments/exported_runs.py [--page docs/benchmark.md]    write the page from committed results

For each classifier (a NAME for the table, a run folder, and data as for `lambdanets export --int8`), the float32 and
the int8 file of each runtime and PyTorch are timed in turn, with one image and one thread. A detector is exported with
dynamic size, and its objects in 20 images of FOLDER are compared with those in PyTorch.
"""

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
from pages import RESULTS, Script, replace_section

import lambdanets as ln
from lambdanets.data.coco.loader import image_to_tensor
from lambdanets.data.image_search import list_images
from lambdanets.data.images import read_image
from lambdanets.text_tables import markdown_table
from lambdanets_lab.export.runtimes import RUNTIMES
from lambdanets_lab.results import read_results, time_in_turn, write_results

FORMATS = ("onnx", "openvino")
IMAGES = 20


def compare_objects(run: Path, images: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the number of objects in PyTorch and the fraction that differs, per runtime and image."""
    detector = ln.load(run, device="cpu")
    paths = list_images(images).paths
    rows = []
    for to in FORMATS:
        exported = ln.export(detector, folder / f"dynamic{RUNTIMES[to].suffix}", to=to, dynamic=True)
        for path in paths[:: len(paths) // IMAGES][:IMAGES]:
            image = detector.model.transform.resize(image_to_tensor(read_image(path)))[0][None]
            expected = exported.graph.run_pytorch(image)
            error = exported.graph.error(exported.run(image), expected)
            rows.append({"to": to, "image": path.name, "sides": list(image.shape[2:]), "objects": len(expected[0])})
            rows[-1]["fraction_that_differs"] = error
            print(rows[-1], flush=True)
    return rows


def measure(name: str, run: Path, data: str, folder: Path, seconds: float) -> list[dict[str, Any]]:
    """Return accuracy, size and time of float32 and int8 per runtime."""
    runs: dict[tuple[str, str], Any] = {}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for to in FORMATS:
        path = folder / f"{name} {{}}{RUNTIMES[to].suffix}"
        files = {"float32": ln.export(run, str(path).format("float32"), to=to)}
        files["int8"] = ln.export(run, str(path).format("int8"), to=to, int8=data)
        result = files["int8"].quantization
        assert result is not None
        accuracy = {"float32": result.float_accuracy, "int8": result.accuracy}
        graph = files["int8"].graph
        images = graph.make_images(graph.shape, torch.Generator().manual_seed(0))
        for dtype, exported in files.items():
            runs[to, dtype] = functools.partial(exported.run, images)
            row = {"run": name, "to": to, "dtype": dtype, "shape": list(graph.shape)}
            size = sum(file.stat().st_size for file in exported.files)
            rows[to, dtype] = row | {"images": result.images, "accuracy": accuracy[dtype], "bytes": size}
        runs["PyTorch", "float32"] = functools.partial(graph.run_pytorch, images)
        print(rows[to, "int8"], flush=True)
    rows["PyTorch", "float32"] = {"run": name, "to": "PyTorch", "dtype": "float32"}
    for key, times in time_in_turn(runs, repeats=200, seconds=seconds, unit=1e-3, digits=3).items():
        rows[key]["milliseconds"] = times
        print(*key, times, flush=True)
    return list(rows.values())


def write_page(page: Path, result: dict[str, Any]) -> None:
    """Replace the tables between the markers of the page."""
    by_key = {(row["run"], row["to"], row["dtype"]): row for row in result["rows"]}
    rows = []
    for name in dict.fromkeys(row["run"] for row in result["rows"]):
        for to in FORMATS:
            before, after = by_key[name, to, "float32"], by_key[name, to, "int8"]
            metric = f"top-1, {before['images']:,} images"
            cells = [f"{100 * row['accuracy']:.2f}%" for row in (before, after)]
            cells += [f"{before['bytes'] / 1e6:.2f} to {after['bytes'] / 1e6:.2f} MB"]
            cells += [f"{row['milliseconds']['median']:.2f}" for row in (before, after)]
            rows.append([name, RUNTIMES[to].title, metric, *cells])
    header = ["model", "runtime", "metric", "float32", "int8", "size", "float32 ms", "int8 ms"]
    table = markdown_table(header, *rows)
    agreements = []
    for to in FORMATS:
        images = [row for row in result["objects"] if row["to"] == to]
        num_different = sum(round(row["fraction_that_differs"] * row["objects"]) for row in images)
        num_objects = sum(row["objects"] for row in images)
        agreements.append(f"{RUNTIMES[to].title} {num_objects - num_different:,} of {num_objects:,}")
    sentence = (
        f"Objects of the nuclei detector in {len(result['objects']) // len(FORMATS)} images that are the same as in "
        f"PyTorch (label, box and mask IoU above 0.99, score to 0.001): {', '.join(agreements)}."
    )
    replace_section(page, "exported_runs", f"{table}\n\n{sentence}\n")


def main() -> None:
    parser = Script(__doc__, "benchmark.md")
    parser.add_argument("--run", nargs=3, action="append", default=[], metavar=("NAME", "RUN", "DATA"))
    parser.add_argument("--detector", nargs=2, type=Path, metavar=("RUN", "FOLDER"))
    parser.add_argument("--seconds", type=float, default=5, help="time for the runs of each candidate, roughly")
    arguments = parser.parse_args()
    if arguments.out is None:
        write_page(arguments.page, read_results(RESULTS / "epyc-2-cores/exported_runs.json"))
        return
    torch.set_num_threads(1)
    result: dict[str, Any] = {"rows": [], "objects": []}
    with tempfile.TemporaryDirectory() as folder:
        for name, run, data in arguments.run:
            result["rows"] += measure(name, Path(run), data, Path(folder), arguments.seconds)
        if arguments.detector:
            result["objects"] = compare_objects(*arguments.detector, Path(folder))
    write_results(arguments.out, result, ("onnxruntime", "openvino", "onnxscript", "nncf"))


if __name__ == "__main__":
    main()
