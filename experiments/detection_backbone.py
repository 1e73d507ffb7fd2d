"""A detector's backbone at 1024 x 1024: LambdaResNet-50, and the same network with rivals in the place of its layers.

    python experiments/detection_backbone.py --out FILE [--size 1024] [--contestants NAME ...]    measure
    python experiments/detection_backbone.py [--page docs/detection.md]    write the page's tables from its results

Batch 1, on a processor, four maps of strides 4 to 32. Contestants run in rounds in one process, each checked layer by
layer against float64 before; what would not fit into free memory is not started. "mask-rcnn" is a training step of a
Mask R-CNN on LambdaResNet-50 with two images, in a process of its own. "stride-8" is the memory of one layer where maps
are 128 x 128.
"""

import argparse
import copy
import dataclasses
import functools
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lambdanets.device import free_memory
from lambdanets.evidence.benchmark.allocations import peak_bytes
from lambdanets.evidence.benchmark.model import calibrate
from lambdanets.evidence.benchmark.peers import LeftOut, build_peer
from lambdanets.evidence.benchmark.race import (
    Case,
    Contestant,
    Measuring,
    Prepared,
    Row,
    plain_float32,
    prepare_module,
    race,
)
from lambdanets.evidence.benchmark.reference import Error, Expected, expected_of, plain_copy
from lambdanets.evidence.benchmark.report import rival_versions
from lambdanets.evidence.benchmark.timing import summarize
from lambdanets.layers import LambdaLayer2d
from lambdanets.layers.baselines import GlobalAttention
from lambdanets.layers.contiguous_gradient import contiguous_gradient
from lambdanets.models import create_model
from lambdanets.models.mask_rcnn import mask_rcnn
from lambdanets.provenance import commit, hardware, versions
from lambdanets.text_tables import markdown_table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments/results/epyc-2-cores/detection_backbone.json"
BEGIN, END = "<!-- written by experiments/detection_backbone.py -->\n", "<!-- end -->\n"
CPU = torch.device("cpu")
HEADS = 8
PASSES = ("forward", "forward and backward")
OURS, STEP, FINE = "lambdanets", "mask-rcnn", "stride-8"
FINE_STRIDE, FINE_CHANNELS = 8, 128  # of ResNet-50's c3
ROWS = {  # contestants, as the page calls them
    OURS: "lambda layer",
    "lambda-networks": "lambda layer of lambda-networks",
    "global-attention": "global self-attention, fused",
    "global-attention-maps": "global self-attention, maps of all pairs kept",
    "convolution": "3x3 convolution",
}


class KeepsMaps(nn.Module):
    """Attention without fused kernels, as the paper's rivals were: the weights of all pairs are held."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return self.layer(x)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Images, and where there is a backward pass the gradients of the maps."""

    images: Tensor
    gradients: list[Tensor] | None


class Backbones:
    """The contestants of one size and pass. Batch norm has fixed statistics, those of the images, in both passes."""

    def __init__(self, size: int, backward: bool) -> None:
        self.size, self.backward = size, backward

    @functools.cached_property
    def ours(self) -> Any:
        torch.manual_seed(0)
        # a residual branch that starts at zero would hide what is in it from the check
        network = create_model("lambda_resnet50", features_only=True, out_indices=(1, 2, 3, 4), zero_init_last=False)
        calibrate(network, self.images)
        return network.eval().requires_grad_(self.backward)

    @functools.cached_property
    def places(self) -> list[str]:
        return [path for path, module in self.ours.named_modules() if isinstance(module, LambdaLayer2d)]

    @functools.cached_property
    def images(self) -> Tensor:
        return torch.randn(1, 3, self.size, self.size, generator=torch.Generator().manual_seed(1))

    @functools.cached_property
    def inputs(self) -> Inputs:
        info = self.ours.feature_info
        sides = [-(-self.size // stride) for stride in info.reduction()]
        maps = [torch.randn(1, dim, side, side) for dim, side in zip(info.channels(), sides, strict=True)]
        return Inputs(self.images, maps if self.backward else None)

    @functools.cached_property
    def met(self) -> dict[str, tuple[Tensor, Tensor | None]]:
        """The input of each lambda layer and, with a backward pass, the gradient of its output."""
        met: dict[str, tuple[Tensor, Tensor | None]] = {}

        def note(path: str, module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            x = arguments[0].detach().clone()
            met[path] = (x, None)
            if self.backward:
                output.register_hook(lambda gradient: met.update({path: (x, gradient.detach().clone())}))

        hooks = [
            self.ours.get_submodule(path).register_forward_hook(functools.partial(note, path)) for path in self.places
        ]
        run(self.ours, self.inputs)
        for hook in hooks:
            hook.remove()
        return met

    @functools.cached_property
    def expected(self) -> dict[str, Expected]:
        """What a lambda layer must give in each place."""
        return {path: expected_of(plain_copy(self.ours.get_submodule(path)), *self.met[path]) for path in self.places}

    def prepare(self, name: str) -> Prepared:
        if name.startswith("global-attention"):
            refuse_unfit(self.attention_bytes(kept=name.endswith("maps")))
        torch.manual_seed(2)
        model = copy.deepcopy(self.ours)
        for path in self.places:
            layer = rival(name, self.ours.get_submodule(path), self.size // 16)
            model.set_submodule(path, layer.requires_grad_(self.backward))

        def errors() -> dict[str, Error]:
            worst: dict[str, Error] = {}
            for path, (x, gradient) in self.met.items():
                layer = model.get_submodule(path)
                same = name in (OURS, "lambda-networks")
                expected = self.expected[path] if same else expected_of(plain_copy(layer), x, gradient)
                alone = prepare_module(layer, x, gradient, functools.partial(lambda found: found, expected))
                alone.work()
                for what, error in alone.errors().items():
                    worst[what] = max(worst.get(what, error), error)
                alone.release()
            return worst

        release = functools.partial(model.zero_grad, set_to_none=True)
        return Prepared(functools.partial(run, model, self.inputs), errors, release)

    def attention_bytes(self, *, kept: bool) -> int:
        """What attention alone will hold, of float32.

        Logits and weights in a forward pass; the weights of all layers and three more of the largest with a backward
        pass.
        """
        counts = []
        for path in self.places:
            x, ours = self.met[path][0], self.ours.get_submodule(path)
            height, width = x.shape[2:]
            counts.append(bytes_of_attention(ours.dim_out, height, width, kept=kept))
        return sum(counts) + 3 * max(counts) if self.backward else 2 * max(counts)


def rival(name: str, ours: LambdaLayer2d, side: int) -> nn.Module:
    """A contestant's layer for a lambda layer's place, on maps of side x side at most."""
    dim, stride = ours.dim, ours.stride
    if name == OURS:
        return copy.deepcopy(ours)
    if name == "convolution":
        return nn.Conv2d(dim, ours.dim_out, 3, stride, padding=1, bias=False)
    if name == "lambda-networks":
        theirs = build_peer(name, ours)
        for norm in [module for module in theirs.modules() if isinstance(module, nn.BatchNorm2d)]:
            # PyTorch's batch norm else gives them wrong gradients at batch 1
            norm.register_forward_hook(lambda module, inputs, output: contiguous_gradient(output))
        return theirs
    attention = GlobalAttention(dim, ours.dim_out, stride=stride, heads=HEADS, max_distance=max(1, side - 1)).eval()
    return KeepsMaps(attention) if name.endswith("maps") else attention


def refuse_unfit(needed: int) -> None:
    free = free_memory(CPU)
    if needed > free:
        raise LeftOut(f"does not fit: needs {needed / 2**30:.1f} GiB of {free / 2**30:.1f}")


def bytes_of_attention(dim: int, height: int, width: int, *, kept: bool) -> int:
    """Float32 that a layer holds of each of its intermediates: the maps of all pairs, or queries, keys and values with
    their rows and columns, and copies."""
    return 4 * HEADS * height * width * (height * width if kept else 6 * (dim // HEADS + height + width))


def run(model: nn.Module, inputs: Inputs) -> None:
    """One pass; gradients are made anew."""
    model.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(inputs.gradients is not None):
        maps = model(inputs.images)
    if inputs.gradients is not None:
        torch.autograd.backward(maps, inputs.gradients)


def training_step(size: int) -> dict[str, Any]:
    """Seconds and memory of a training step of a Mask R-CNN on LambdaResNet-50 with two images, 8 objects each."""
    torch.manual_seed(0)
    model = mask_rcnn("lambda_resnet50", 90, image_size=size).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    images, targets = [torch.rand(3, size, size) for _ in range(2)], []
    for _ in images:
        corners = torch.randint(0, size // 2, (8, 2)).float()
        boxes = torch.cat([corners, corners + torch.randint(size // 8, size // 2, (8, 2))], dim=1)
        masks = torch.zeros(8, size, size, dtype=torch.uint8)
        for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
            mask[top:bottom, left:right] = 1
        targets.append({"boxes": boxes, "labels": torch.randint(1, 91, (8,)), "masks": masks})

    def step() -> float:
        begun = time.perf_counter()
        losses = model(images, targets)
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begun

    step()
    seconds = [step() for _ in range(2)]
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "peak_resident_bytes": resident, "peak_bytes": peak_bytes(step, CPU)}


def forward_and_backward(layer: nn.Module, x: Tensor) -> None:
    layer(x).sum().backward()


def memory_of_a_fine_layer(size: int, names: list[str]) -> dict[str, int | str]:
    """Bytes that a layer at stride 8 holds at its fullest, forward and backward, or why it was left out."""
    torch.manual_seed(0)
    side = size // FINE_STRIDE
    ours = LambdaLayer2d(FINE_CHANNELS, scope=23)
    x = torch.randn(1, FINE_CHANNELS, side, side, requires_grad=True)
    found: dict[str, int | str] = {}
    for name in names:
        try:
            if name.startswith("global-attention"):
                refuse_unfit(4 * bytes_of_attention(FINE_CHANNELS, side, side, kept=name.endswith("maps")))
            layer = rival(name, ours, side).eval()
        except LeftOut as reason:
            found[name] = str(reason)
            continue
        found[name] = peak_bytes(functools.partial(forward_and_backward, layer, x), CPU)
        x.grad = None
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    rows: list[Row] = []
    names = [name for name in ROWS if name in options.contestants]
    for number, name in enumerate(options.passes if names else ()):
        backbones = Backbones(options.size, name == PASSES[1])
        contestants = [Contestant(each, functools.partial(backbones.prepare, each)) for each in names]
        measuring = Measuring(
            CPU,
            time=True,
            memory=True,
            repeats=options.repeats,
            seconds=options.seconds,
            seed=number,
            tell=lambda said: print(f"  {said}", file=sys.stderr, flush=True),
        )
        race(Case({"size": options.size, "pass": name}, contestants), rows, measuring)
    content: dict[str, Any] = {
        "size": options.size,
        "rows": [
            dataclasses.asdict(row) | ({"median_seconds": summarize(row.seconds).median} if row.seconds else {})
            for row in rows
        ],
    }
    if FINE in options.contestants:
        content["fine"] = memory_of_a_fine_layer(options.size, names)
    if STEP in options.contestants:
        child = [sys.executable, __file__, "--step", "--size", str(options.size)]
        content["step"] = json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return content | {"commit": commit(), "versions": versions() | rival_versions(), "hardware": hardware()}


def tables(results: dict[str, Any]) -> str:
    """What the page has between its marks."""
    size, machine = results["size"], results["hardware"]
    found = {(row["contestant"], row["sizes"]["pass"]): row for row in results["rows"]}
    header = ["in place of 4 convolutions", "forward, s", "min to max", "peak GiB"]
    header += ["forward and backward, s", "min to max", "peak GiB"]
    rows = []
    for name, words in ROWS.items():
        cells = []
        for each in PASSES:
            row = found.get((name, each))
            if row is None:
                cells += ["not run", "", ""]
            elif row["left_out"]:
                cells += [row["left_out"], "", ""]
            else:
                spread = f"{min(row['seconds']):.2f} to {max(row['seconds']):.2f}"
                cells += [f"{row['median_seconds']:.2f}", spread, f"{row['peak_bytes'] / 2**30:.2f}"]
        if any(cell not in ("not run", "") for cell in cells):
            rows.append([words, *cells])
    runs = [len(row["seconds"]) for row in results["rows"] if row["seconds"]]
    text = ""
    if runs:
        where = f"{machine['processor']} with {machine['threads']} of {machine['cores']} cores"
        text = f"""LambdaResNet-50 as a backbone, one image of {size} x {size} pixels, maps of strides 4 to 32,
with its lambda layers or with baselines in their place; float32, batch norm with fixed statistics. Medians of
{" to ".join(map(str, sorted({min(runs), max(runs)})))} runs in turns, on {where}.
The peak is that of PyTorch's allocator, without weights and images.

{markdown_table(header, *rows)}
"""
    if "fine" in results:
        side = size // FINE_STRIDE
        text += f"\nOne layer in c3, {FINE_CHANNELS} channels on {side} x {side} positions, forward and backward:\n\n"
        peaks = [
            [ROWS[name], held if isinstance(held, str) else f"{held / 2**30:.2f}"]
            for name, held in results["fine"].items()
        ]
        text += markdown_table(["layer", "peak GiB"], *peaks) + "\n"
    if "step" in results:
        step = results["step"]
        text += (
            f"\nA training step of Mask R-CNN on LambdaResNet-50 with two images of {size} x {size} takes\n"
            f"{summarize(step['seconds']).median:.0f} s and {step['peak_bytes'] / 2**30:.1f} GiB; its process holds "
            f"{step['peak_resident_bytes'] / 2**30:.1f} GiB at most.\n"
        )
    return text


def write_page(page: Path, results: dict[str, Any]) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{tables(results)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--contestants", nargs="+", choices=[*ROWS, FINE, STEP], default=[*ROWS, FINE, STEP])
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=PASSES)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each, at most")
    parser.add_argument("--seconds", type=float, default=40, help="for the runs of one contestant; three at least")
    parser.add_argument("--out", type=Path, help="measure, and write the results as JSON")
    parser.add_argument("--page", type=Path, help="write its tables from experiments/results")
    parser.add_argument("--step", action="store_true", help="the training step alone, in this process; prints JSON")
    options = parser.parse_args()
    with plain_float32(None):
        if options.step:
            print(json.dumps(training_step(options.size)))
        elif options.out:
            options.out.write_text(json.dumps(measure(options), indent=1) + "\n", encoding="utf-8")
    if not (options.step or options.out):
        write_page(options.page or ROOT / "docs/detection.md", json.loads(RESULTS.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
