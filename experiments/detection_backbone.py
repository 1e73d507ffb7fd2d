"""Detection backbones at 1024 x 1024: LambdaResNet-50, and the same network with other layers for its lambda layers.

    python experiments/detection_backbone.py --out FILE [--size 1024]      measure
    python experiments/detection_backbone.py [--page docs/benchmark.md]    write the page from committed results

Batch 1, on a CPU, feature maps of strides 4 to 32. All candidates are timed in turn in one process. Then follow the
peak memory of one layer on 128 x 128 maps, if it fits into free memory, and a training step of Mask R-CNN on
LambdaResNet-50 with two images.
"""

import argparse
import copy
import dataclasses
import functools
import time
from typing import Any

import torch
from pages import RESULTS, Script, replace_section
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from lambdanets.device import free_memory
from lambdanets.layers import LambdaLayer2d
from lambdanets.layers.projection import contiguous_gradient
from lambdanets.models import create_model
from lambdanets.models.mask_rcnn import mask_rcnn
from lambdanets.text_tables import markdown_table
from lambdanets_lab.benchmark.measurement import (
    Candidate,
    Case,
    MeasureOptions,
    Prepared,
    measure_case,
    set_measurement_options,
)
from lambdanets_lab.benchmark.model import set_batch_norm_statistics
from lambdanets_lab.benchmark.peak_memory import peak_bytes
from lambdanets_lab.benchmark.peers import Skipped, build_peer
from lambdanets_lab.mixers.attention import GlobalAttention
from lambdanets_lab.results import read_results, write_results
from lambdanets_lab.timing import summarize

CPU = torch.device("cpu")
HEADS = 8
PASSES = ("forward", "forward and backward")
LAMBDA_LAYER = "lambdanets"
STRIDE_8_CHANNELS = 128  # of ResNet-50's c3
ROWS = {  # candidates, and their names on the page
    LAMBDA_LAYER: "lambda layer",
    "lambda-networks": "lambda layer of lambda-networks",
    "global-attention": "global self-attention, fused",
    "global-attention-maps": "global self-attention, not fused",
    "convolution": "3x3 convolution",
}


class UnfusedAttention(nn.Module):
    """Attention without fused kernels, which keeps the n x n attention weights in memory, as in the paper."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return self.layer(x)


def make_backbone(images: Tensor) -> nn.Module:
    """LambdaResNet-50 whose batch norms have fixed statistics, computed from the images."""
    torch.manual_seed(0)
    network = create_model("lambda_resnet50", features_only=True, out_indices=(1, 2, 3, 4))
    set_batch_norm_statistics(network, images)
    return network.eval()


def prepare(name: str, backbone: nn.Module, images: Tensor, backward: bool) -> Prepared:
    """Prepare the backbone with a candidate's layers in place of its lambda layers."""
    torch.manual_seed(2)
    model = copy.deepcopy(backbone).requires_grad_(backward)
    for path, module in list(model.named_modules()):
        if isinstance(module, LambdaLayer2d):
            model.set_submodule(path, build_layer(name, module, images.shape[2] // 16).requires_grad_(backward))
    release = functools.partial(model.zero_grad, set_to_none=True)

    def run() -> None:
        release()
        with torch.set_grad_enabled(backward):
            maps = model(images)
        if backward:
            torch.autograd.backward(maps, [torch.ones_like(x) for x in maps])

    return Prepared(run, dict, release)


def build_layer(name: str, lambda_layer: LambdaLayer2d, side: int) -> nn.Module:
    """The candidate's layer that replaces a lambda layer, for maps up to side x side."""
    dim, dim_out, stride = lambda_layer.dim, lambda_layer.dim_out, lambda_layer.stride
    if name == LAMBDA_LAYER:
        return copy.deepcopy(lambda_layer)
    if name == "convolution":
        return nn.Conv2d(dim, dim_out, 3, stride, padding=1, bias=False)
    if name == "lambda-networks":
        peer = build_peer(name, lambda_layer)
        for norm in [module for module in peer.modules() if isinstance(module, nn.BatchNorm2d)]:
            # PyTorch's batch norm computes wrong gradients at batch 1 if they are not contiguous
            norm.register_forward_hook(lambda module, inputs, output: contiguous_gradient(output, output.shape))
        return peer
    attention = GlobalAttention(dim, dim_out, stride=stride, heads=HEADS, max_distance=max(1, side - 1)).eval()
    return UnfusedAttention(attention) if name.endswith("maps") else attention


def training_step(size: int) -> dict[str, Any]:
    """Measure a training step of Mask R-CNN on LambdaResNet-50 with two images of 8 objects."""
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
        start = time.perf_counter()
        losses = model(images, targets)
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    step()
    return {"seconds": [step() for _ in range(2)], "peak_bytes": peak_bytes(step, CPU)}


def forward_and_backward(layer: nn.Module, x: Tensor) -> None:
    layer(x).sum().backward()


def peak_at_stride_8(size: int) -> dict[str, int | str]:
    """Peak bytes of each candidate's layer at stride 8, forward and backward, or the reason why it is not measured."""
    torch.manual_seed(0)
    side, free = size // 8, free_memory(CPU)
    lambda_layer = LambdaLayer2d(STRIDE_8_CHANNELS, scope=23)
    x = torch.randn(1, STRIDE_8_CHANNELS, side, side, requires_grad=True)
    weights = 4 * 4 * HEADS * side**4  # bytes of the attention weights and three more tensors of this size, in float32
    peaks: dict[str, int | str] = {}
    for name in ROWS:
        try:
            if name == "global-attention-maps" and weights > free:
                raise Skipped(f"does not fit: needs {weights / 2**30:.1f} GiB of {free / 2**30:.1f}")
            layer = build_layer(name, lambda_layer, side).eval()
        except Skipped as reason:
            peaks[name] = str(reason)
            continue
        peaks[name] = peak_bytes(functools.partial(forward_and_backward, layer, x), CPU)
        x.grad = None
    return peaks


def measure(options: argparse.Namespace) -> dict[str, Any]:
    images = torch.randn(1, 3, options.size, options.size, generator=torch.Generator().manual_seed(1))
    backbone, rows = make_backbone(images), []
    limits = {"repeats": options.repeats, "seconds": options.seconds, "on_progress": print}
    for phase in PASSES:
        backward = phase == PASSES[1]
        candidates = [Candidate(name, functools.partial(prepare, name, backbone, images, backward)) for name in ROWS]
        measure_case(Case({"size": options.size, "pass": phase}, candidates), rows, MeasureOptions(CPU, **limits))
    medians = [{"median_seconds": summarize(row.seconds).median} if row.seconds else {} for row in rows]
    return {
        "size": options.size,
        "rows": [dataclasses.asdict(row) | median for row, median in zip(rows, medians, strict=True)],
        "stride_8": peak_at_stride_8(options.size),
        "training_step": training_step(options.size),
    }


def tables(results: dict[str, Any]) -> str:
    """The text between the page's markers."""
    size, machine, step = results["size"], results["hardware"], results["training_step"]
    measured = {(row["candidate"], row["sizes"]["pass"]): row for row in results["rows"]}
    header = ["layer", "forward, s", "min to max", "peak GiB"]
    header += ["forward and backward, s", "min to max", "peak GiB"]
    rows = []
    for name, label in ROWS.items():
        cells = []
        for phase in PASSES:
            row = measured[name, phase]
            if row["skip_reason"]:
                cells += [row["skip_reason"], "", ""]
            else:
                spread = f"{min(row['seconds']):.2f} to {max(row['seconds']):.2f}"
                cells += [f"{row['median_seconds']:.2f}", spread, f"{row['peak_bytes'] / 2**30:.2f}"]
        rows.append([label, *cells])
    runs = [len(row["seconds"]) for row in results["rows"] if row["seconds"]]
    peaks = [
        [ROWS[name], peak if isinstance(peak, str) else f"{peak / 2**30:.2f}"]
        for name, peak in results["stride_8"].items()
    ]
    return f"""LambdaResNet-50 as a backbone, one image of {size} x {size} pixels, feature maps of strides 4
to 32, with its four lambda layers or with other layers instead; float32, batch norm with fixed statistics. Medians of
{min(runs)} to {max(runs)} interleaved runs, on {machine["processor"]} with {machine["threads"]} of {machine["cores"]} \
cores, before the native engine.
The peak is what PyTorch's allocator reports, not counting weights and images.

{markdown_table(header, *rows)}

One layer in c3, {STRIDE_8_CHANNELS} channels on {size // 8} x {size // 8} positions, forward and backward:

{markdown_table(["layer", "peak GiB"], *peaks)}

A training step of Mask R-CNN on LambdaResNet-50 with two images of {size} x {size} takes
{summarize(step["seconds"]).median:.0f} s and {step["peak_bytes"] / 2**30:.1f} GiB.
"""


def main() -> None:
    parser = Script(__doc__, "benchmark.md")
    parser.add_argument("--size", type=int, default=1024, help="side of the images in pixels")
    parser.add_argument("--repeats", type=int, default=5, help="maximum number of timed runs per candidate")
    parser.add_argument("--seconds", type=float, default=40, help="time limit per candidate in seconds")
    options = parser.parse_args()
    set_measurement_options(None)
    if options.out:
        write_results(options.out, measure(options), ["lambda-networks"])
    else:
        results = read_results(RESULTS / "epyc-2-cores/detection_backbone.json")
        replace_section(options.page, "detection_backbone", f"\n{tables(results)}\n")


if __name__ == "__main__":
    main()
