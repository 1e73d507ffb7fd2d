"""Time of networks with lambda layers of other packages, before and after ln.adopt, and of the layers alone.

    python experiments/adopted_networks.py --out FILE [--names NAME ...] [--batch 8] [--threads 2]    measure
    python experiments/adopted_networks.py [--page docs/benchmark.md]    write the table from committed results

For each network, inference and a training step, the original, the adopted network and this in channels_last are timed
interleaved in one process, after their outputs were compared. The layers alone are timed on the maps that they get in
the network. Results are written after each network.
"""

import copy
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from pages import RESULTS, ROOT, Script, replace_section
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from lambdanets import adopt
from lambdanets_lab.export.graphs import fill_zero_norm_weights
from lambdanets_lab.markdown import markdown_table
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
TOLERANCE = {"network": 1e-2, "layers": 1e-5}  # in float32: deep networks with random weights amplify rounding


def measure(name: str, batch: int, repeats: int, seconds: float) -> Iterator[dict[str, Any]]:
    """One row per phase for the network, and one for all its lambda layers together."""
    make, side = NETWORKS[name]
    torch.manual_seed(0)
    original, images = make(), torch.randn(batch, 3, side, side)
    fill_zero_norm_weights(original)
    update_bn([images], original)  # else activations overflow
    adopted = copy.deepcopy(original.eval())
    layers = list(adopt(adopted))
    captured = _capture_inputs(original, layers, images)
    modules = {  # original and adopted, with their input
        "network": [(original, adopted, images)],
        "layers": [(original.get_submodule(n), adopted.get_submodule(n), captured[n]) for n in layers],
    }
    for phase, (what, triples) in itertools.product(("inference", "training"), modules.items()):
        difference = max(_difference(*triple, TOLERANCE[what]) for triple in triples)
        candidates = {
            "original, contiguous": ([(module, x) for module, _, x in triples], torch.contiguous_format),
            "adopted, contiguous": ([(module, x) for _, module, x in triples], torch.contiguous_format),
            "adopted, channels_last": ([(module, x) for _, module, x in triples], torch.channels_last),
        }
        runs = {}
        for candidate, (pairs, layout) in candidates.items():
            copies = [
                (copy.deepcopy(module).to(memory_format=layout).train(phase == "training"), x.to(memory_format=layout))
                for module, x in pairs
            ]
            runs[candidate] = functools.partial(_run_all, copies, phase == "training")
        times = time_in_turn(runs, repeats=repeats, seconds=seconds, unit=1e-3)
        row = {"network": name, "side": side, "batch": batch, "what": what, "phase": phase, "layers": len(layers)}
        yield {**row, "difference": difference, "milliseconds": times}


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


def _run_all(pairs: list[tuple[nn.Module, Tensor]], training: bool) -> None:
    """A forward pass of each module and, in training, a backward pass to the parameters and the input."""
    for module, x in pairs:
        module.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(training):
            output = module(x.detach().requires_grad_(training))
        if training:
            output.square().mean().backward()


@torch.no_grad()
def _difference(original: nn.Module, adopted: nn.Module, x: Tensor, tolerance: float) -> float:
    """Return the relative norm of the difference of the outputs. Exits if it exceeds the tolerance."""
    expected = original(x)
    difference = float((adopted(x) - expected).norm() / expected.norm())
    if not difference <= tolerance:
        raise SystemExit(f"outputs of {type(original).__name__} differ by {difference:.1e}")
    return difference


def write_page(page: Path, result: dict[str, Any]) -> None:
    medians = {
        (row["network"], row["what"], row["phase"]): {key: each["median"] for key, each in row["milliseconds"].items()}
        for row in result["rows"]
    }
    rows = []
    for name in dict.fromkeys(network for network, _, _ in medians):
        cells = [f"`{name}`" if name in TIMM else name]
        for phase in ("inference", "training"):
            network, layers = medians[name, "network", phase], medians[name, "layers", phase]
            before, after = network["original, contiguous"], network["adopted, contiguous"]
            cells += [f"{before:.0f}", f"{after:.0f} ({before / after:.2f})"]
            channels_last = network["adopted, channels_last"]
            layer_speedup = layers["original, contiguous"] / layers["adopted, contiguous"]
            cells += [f"{channels_last:.0f} ({before / channels_last:.2f})", f"{layer_speedup:.1f}"]
        rows.append(cells)
    header = ["network"]
    for phase in ("inference", "training"):
        header += [f"{phase}, original", "adopted", "adopted, channels_last", "layers alone"]
    replace_section(page, "adopted_networks", markdown_table(header, *rows) + "\n")


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
