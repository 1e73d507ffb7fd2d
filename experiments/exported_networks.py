"""Time and error of exported networks in ONNX Runtime and OpenVINO, compared with ResNet-50 in the same runtime.

    python experiments/exported_networks.py --out FILE [--names NAME ...] [--seconds 5]    measure
    python experiments/exported_networks.py --out FILE --threads    compare outputs, without timing
    python experiments/exported_networks.py [--page docs/benchmark.md]    write the page from committed results

For each number of threads and batch size, all networks in both runtimes are timed in turn in one process, with 224 x
224 images (lambda_resnet26rpt_256: 256 x 256) and fixed shapes. Before, each network is exported with fixed and with
dynamic shapes, and compared with PyTorch at three shapes. Results are written after each setting.
"""

import functools
import itertools
import tempfile
from pathlib import Path
from typing import Any

import torch
from pages import RESULTS, Script, replace_section
from torch.optim.swa_utils import update_bn

from lambdanets import create_model, export
from lambdanets_lab.export.graphs import fill_zero_norm_weights
from lambdanets_lab.export.runtimes import RUNTIMES
from lambdanets_lab.markdown import markdown_table
from lambdanets_lab.results import read_results, write_results
from lambdanets_lab.timing import time_in_turn

NETWORKS: dict[str, tuple[str, dict[str, Any], int]] = {  # model, options, side of the images
    "ResNet-50": ("resnet50", {}, 224),
    "ResNet-50 CCLL": ("resnet50_lambda", {"pattern": "CCLL"}, 224),
    "LambdaResNet-50": ("lambda_resnet50", {}, 224),
    "MobileNetV2 with lambda layers": ("mobilenetv2_lambda", {}, 224),
    "lambda_resnet26rpt_256": ("timm/lambda_resnet26rpt_256", {}, 256),
}
FORMATS = ("onnx", "openvino")
PACKAGES = ("onnxruntime", "openvino", "onnxscript")
TITLES = {**{name: RUNTIMES[name].title for name in FORMATS}, "PyTorch": "PyTorch"}


def make_network(model: str, options: dict[str, Any], image_size: int) -> torch.nn.Module:
    """Create a network with random weights whose outputs depend on all layers, in evaluation mode."""
    torch.manual_seed(0)
    network = create_model(model, **options)
    fill_zero_norm_weights(network)
    update_bn([torch.randn(4, 3, image_size, image_size)], network)  # else activations overflow
    return network.eval()


def compare(names: list[str], folder: Path) -> list[dict[str, Any]]:
    """Export each network with dynamic shapes; return the errors by shape."""
    rows = []
    for name in names:
        network, side = make_network(*NETWORKS[name]), NETWORKS[name][2]
        for to in FORMATS:
            path = folder / f"{name} dynamic{RUNTIMES[to].suffix}"
            errors = export(network, path, to=to, image_size=side, dynamic=True).errors
            rows.append({"network": name, "to": to, "errors": {"x".join(map(str, k)): v for k, v in errors.items()}})
            print(rows[-1], flush=True)
    return rows


def measure(names: list[str], folder: Path, threads: int, batch: int, seconds: float) -> list[dict[str, Any]]:
    """Time all networks in both runtimes and in PyTorch (channels_last), in turn."""
    torch.set_num_threads(threads)
    runs, errors, sizes = {}, {}, {}
    for name in names:
        network, side = make_network(*NETWORKS[name]), NETWORKS[name][2]
        images = torch.randn(batch, 3, side, side)
        for to in FORMATS:
            path = folder / f"{name} {threads} {batch}{RUNTIMES[to].suffix}"
            exported = export(network, path, to=to, image_size=side, batch_size=batch)
            runs[name, to] = functools.partial(exported.run, images)
            errors[name, to] = max(exported.errors.values())
            sizes[name, to] = sum(file.stat().st_size for file in exported.files)
        network.to(memory_format=torch.channels_last)
        runs[name, "PyTorch"] = functools.partial(infer, network, images.contiguous(memory_format=torch.channels_last))
    rows = []
    for (name, to), times in time_in_turn(runs, repeats=50, seconds=seconds, unit=1e-3).items():
        row = {"network": name, "to": to, "threads": threads, "batch": batch}
        rows.append(row | {"error": errors.get((name, to)), "bytes": sizes.get((name, to)), "milliseconds": times})
        print(rows[-1], flush=True)
    return rows


@torch.inference_mode()
def infer(network: torch.nn.Module, images: torch.Tensor) -> None:
    network(images)


def write_page(page: Path, result: dict[str, Any]) -> None:
    medians = {
        (row["threads"], row["batch"], row["to"], row["network"]): row["milliseconds"]["median"]
        for row in result["rows"]
    }
    names = list(dict.fromkeys(row["network"] for row in result["rows"]))
    rows = []
    for threads, batch, to in dict.fromkeys(key[:3] for key in medians):
        times = [medians[threads, batch, to, name] for name in names]
        ratios = [
            f"{time:.0f}" if name == "ResNet-50" else f"{time:.0f} ({time / times[0]:.2f})"
            for name, time in zip(names, times, strict=True)
        ]
        rows.append([str(threads), str(batch), TITLES[to], *ratios])
    table = markdown_table(["threads", "batch", "runtime", *names], *rows)
    max_error = max(error for row in result["dynamic"] for error in row["errors"].values())
    sentence = (
        "With dynamic sizes, at three shapes, outputs differ from PyTorch's by at most "
        f"{max_error:.1e} (relative norm)."
    )
    replace_section(page, "exported_networks", f"{table}\n\n{sentence}\n")


def main() -> None:
    parser = Script(__doc__, "benchmark.md")
    parser.add_argument("--names", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=5, help="time for the runs of each candidate, roughly")
    arguments = parser.parse_args()
    if arguments.out is None:
        write_page(arguments.page, read_results(RESULTS / "epyc-2-cores/exported_networks.json"))
        return
    with tempfile.TemporaryDirectory() as folder:
        result: dict[str, Any] = {"dynamic": compare(arguments.names, Path(folder)), "rows": []}
        write_results(arguments.out, result, PACKAGES)
        for threads, batch in itertools.product(arguments.threads, arguments.batches):
            result["rows"] += measure(arguments.names, Path(folder), threads, batch, arguments.seconds)
            write_results(arguments.out, result, PACKAGES)


if __name__ == "__main__":
    main()
