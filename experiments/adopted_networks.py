"""Time of networks with lambda layers of other packages, before and after ln.adopt, and of the layers alone.

    python experiments/adopted_networks.py --out FILE [--names NAME ...] [--batch 8] [--threads 2]    measure
    python experiments/adopted_networks.py [--page docs/benchmark.md]    write the table from committed results

For each network, inference and a training step, the original, the adopted network and this in channels_last are timed
interleaved in one process, after their outputs were compared. The layers alone are timed on the maps that they get in
the network. Results are written after each network.
"""

import copy
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from pages import RESULTS, ROOT, Script, replace_section
from torch import Tensor, nn

from lambdanets import adopt
from lambdanets.text_tables import markdown_table
from lambdanets_lab.benchmark.model import set_batch_norm_statistics
from lambdanets_lab.export.graphs import fill_zero_norm_weights
from lambdanets_lab.results import read_results, write_results
from lambdanets_lab.timing import time_in_turn

sys.path.append(str(ROOT / "tests"))  # the networks of d-li14 and leaderj1001, written from their formulas

from adoption.foreign_networks import Leaderj1001ResNet18, dli14_resnet

TIMM = ("lambda_resnet26t", "lambda_resnet26rpt_256", "lambda_resnet50ts", "lamhalobotnet50ts_256")
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {  # with the side of the images
    **{name: (functools.partial(timm.create_model, name), 256) for name in TIMM},
    "d-li14 R50": (functools.partial(dli14_resnet, [3, 4, 6, 3]), 224),
    "leaderj1001 R18": (Leaderj1001ResNet18, 224),
}
NETWORK_TOLERANCE = 1e-2  # in float32: deep networks with random weights amplify rounding
LAYER_TOLERANCE = 1e-5


def measure(name: str, batch: int, repeats: int, seconds: float) -> list[dict[str, Any]]:
    """One row per phase for the network, and one for all its lambda layers together."""
    make, side = NETWORKS[name]
    torch.manual_seed(0)
    original, images = make(), torch.randn(batch, 3, side, side)
    fill_zero_norm_weights(original)
    set_batch_norm_statistics(original, images)
    adopted = copy.deepcopy(original)
    layers = list(adopt(adopted))
    captured = _capture_inputs(original.eval(), layers, images)
    rows = []
    for phase in ("inference", "training"):
        training = phase == "training"
        difference = _difference(original.eval(), adopted.eval(), images, NETWORK_TOLERANCE)
        converted = copy.deepcopy(adopted).to(memory_format=torch.channels_last)
        x = images.contiguous(memory_format=torch.channels_last)
        runs = {
            "original, contiguous": functools.partial(_step, copy.deepcopy(original).train(training), images, training),
            "adopted, contiguous": functools.partial(_step, copy.deepcopy(adopted).train(training), images, training),
            "adopted, channels_last": functools.partial(_step, converted.train(training), x, training),
        }
        rows.append({"what": "network", "phase": phase, "difference": difference})
        rows[-1]["milliseconds"] = time_in_turn(runs, repeats=repeats, seconds=seconds, unit=1e-3)
        pairs = [(original.get_submodule(n), adopted.get_submodule(n), captured[n]) for n in layers]
        difference = max(_difference(a.eval(), b.eval(), x, LAYER_TOLERANCE) for a, b, x in pairs)
        runs = {
            "original, contiguous": functools.partial(_steps, [(a.train(training), x) for a, _, x in pairs], training),
            "adopted, contiguous": functools.partial(_steps, [(b.train(training), x) for _, b, x in pairs], training),
        }
        rows.append({"what": "layers", "phase": phase, "difference": difference, "layers": len(layers)})
        rows[-1]["milliseconds"] = time_in_turn(runs, repeats=repeats, seconds=seconds, unit=1e-3)
    return [{"network": name, "side": side, "batch": batch, **row} for row in rows]


@torch.no_grad()
def _capture_inputs(network: nn.Module, layers: list[str], images: Tensor) -> dict[str, Tensor]:
    captured: dict[str, Tensor] = {}

    def capture(name: str, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        captured[name] = arguments[0].clone()

    hooks = [network.get_submodule(name).register_forward_pre_hook(functools.partial(capture, name)) for name in layers]
    network(images)
    for hook in hooks:
        hook.remove()
    return captured


def _step(network: nn.Module, x: Tensor, training: bool) -> None:
    """A forward pass, and in training a backward pass to the parameters and the input."""
    if not training:
        with torch.no_grad():
            network(x)
        return
    network.zero_grad(set_to_none=True)
    network(x.detach().requires_grad_()).square().mean().backward()


def _steps(pairs: list[tuple[nn.Module, Tensor]], training: bool) -> None:
    for layer, x in pairs:
        _step(layer, x, training)


@torch.no_grad()
def _difference(original: nn.Module, adopted: nn.Module, x: Tensor, tolerance: float) -> float:
    """Return the relative norm of the difference of the outputs. Exits if it exceeds the tolerance."""
    expected = original(x)
    difference = float((adopted(x) - expected).norm() / expected.norm())
    if not difference <= tolerance:
        raise SystemExit(f"outputs of {type(original).__name__} differ by {difference:.1e}")
    return difference


def write_page(page: Path, result: dict[str, Any]) -> None:
    rows = []
    for name in dict.fromkeys(row["network"] for row in result["rows"]):
        cells = [f"`{name}`" if name in TIMM else name]
        for phase in ("inference", "training"):
            medians = _medians(result, name, "network", phase)
            before, after = medians["original, contiguous"], medians["adopted, contiguous"]
            cells += [f"{before:.0f}", f"{after:.0f} ({before / after:.2f})"]
            layers = _medians(result, name, "layers", phase)
            channels_last = medians["adopted, channels_last"]
            layer_speedup = layers["original, contiguous"] / layers["adopted, contiguous"]
            cells += [f"{channels_last:.0f} ({before / channels_last:.2f})", f"{layer_speedup:.1f}"]
        rows.append(cells)
    header = ["network"]
    for phase in ("inference", "training"):
        header += [f"{phase}, original", "adopted", "adopted, channels_last", "layers alone"]
    replace_section(page, "adopted_networks", markdown_table(header, *rows) + "\n")


def _medians(result: dict[str, Any], network: str, part: str, phase: str) -> dict[str, float]:
    """Median milliseconds by candidate. part: "network", or "layers" for its lambda layers alone."""
    (row,) = [row for row in result["rows"] if (row["network"], row["what"], row["phase"]) == (network, part, phase)]
    return {name: summary["median"] for name, summary in row["milliseconds"].items()}


def main() -> None:
    parser = Script(__doc__, "benchmark.md")
    parser.add_argument("--names", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=20, help="timed runs of each candidate at most")
    parser.add_argument("--seconds", type=float, default=20, help="time for the runs of each candidate, roughly")
    arguments = parser.parse_args()
    if arguments.out is None:
        write_page(arguments.page, read_results(RESULTS / "xeon-2-cores/adopted_networks.json"))
        return
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    for name in arguments.names:
        rows += measure(name, arguments.batch, arguments.repeats, arguments.seconds)
        write_results(arguments.out, {"rows": rows})
        for row in rows[-4:]:
            print(name, row["what"], row["phase"], {key: value["median"] for key, value in row["milliseconds"].items()})


if __name__ == "__main__":
    main()
