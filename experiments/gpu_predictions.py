"""Predicts the times of the fused kernels and of a 3x3 convolution from a GPU's data sheet.

    python experiments/gpu_predictions.py [--device H100] [--out FILE]

Needs no GPU. `experiments/gpu.py` compares predicted with measured times. The problems are the position terms of
LambdaResNet-50's layers at 224 pixels: batch 128, k = 16, 4 heads, scope 23, bfloat16.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from lambdanets.ops.position.fused.prediction import kernel_seconds, step_work
from lambdanets.ops.position.fused.tiles import (
    LAMBDA_ORDER_KERNELS,
    choose_table_step,
    choose_tiles,
    launched_kernels,
)
from lambdanets.ops.position.gpus import SPECIFICATIONS, GpuSpec
from lambdanets.ops.position.problem import Problem
from lambdanets.text_tables import markdown_table

CAPABILITIES = {"A100": (8, 0), "L40S": (8, 9), "RTX 4090": (8, 9), "H100": (9, 0), "H200": (9, 0), "B200": (10, 0)}
BATCH, HEADS, SCOPE = 128, 4, 23
LAYERS = ((56, 16), (28, 32), (14, 64), (7, 128))  # side of the map and value depth of the layers in c2 to c5
CONVOLUTION_EFFICIENCY = 0.7  # fraction of the peak FLOP/s, as the plan assumes for large matrix products


def layer_problem(side: int, v: int, dtype: torch.dtype = torch.bfloat16) -> Problem:
    radius = min(SCOPE // 2, side - 1)
    return Problem(BATCH, HEADS, (side, side), 16, v, 1, (radius,) * 2, (radius,) * 2, False, dtype, "cuda")


def convolution_seconds(side: int, v: int, gpu: GpuSpec) -> float:
    """Predicted seconds of the forward pass of a 3x3 convolution with the same number of channels."""
    channels, positions = HEADS * v, BATCH * side * side
    return max(
        2 * positions * 9 * channels**2 / (CONVOLUTION_EFFICIENCY * gpu.bfloat16_flops),
        2 * 2 * positions * channels / (0.8 * gpu.memory_bandwidth),
    )


def predict_layers(device: str) -> list[dict[str, Any]]:
    """Predict the microseconds of the kernels and of the convolution for each layer."""
    rows = []
    for side, v in LAYERS:
        problem = layer_problem(side, v)
        times = {
            kernel: 1e6 * kernel_seconds(kernel, problem, CAPABILITIES[device], SPECIFICATIONS[device])
            for kernel in launched_kernels(CAPABILITIES[device], problem.dtype.itemsize, v)
        }
        *forward, _, _, _ = times.values()
        forward, backward = min(forward), sum(times.values()) - sum(forward)
        convolution = 1e6 * convolution_seconds(side, v, SPECIFICATIONS[device])
        rows.append({
            "side": side, "v": v, "kernels_us": times, "forward_us": forward, "backward_us": backward,
            "convolution_us": convolution, "convolution_backward_us": 2 * convolution,
        })  # fmt: skip
    return rows


def arithmetic_intensities(device: str) -> list[dict[str, Any]]:
    """The arithmetic intensity of each kernel in operations per loaded byte."""
    rows = []
    for side, v in LAYERS:
        for kernel in launched_kernels(CAPABILITIES[device], 2, v):
            tiles = choose_tiles(kernel, CAPABILITIES[device], 2, BATCH, HEADS, side * side, v)
            radius = layer_problem(side, v).before
            rows_per_step = choose_table_step((side, side), radius, tiles.positions, tiles.step)[0]
            step = step_work(kernel, tiles, HEADS, 2, rows_per_step if kernel == "grad_table_partial" else 1)
            # each block of value channels recomputes the other factor, which is not useful work
            blocks = -(-v // tiles.values)
            useful = 2 * step.multiply_adds
            if kernel not in (*LAMBDA_ORDER_KERNELS, "grad_table_partial"):
                useful *= (16 / blocks + tiles.values) / (16 + tiles.values)
            rows.append({"kernel": kernel, "v": v, "operations_per_byte": useful / (2 * step.loaded_elements)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(CAPABILITIES), default="H100")
    parser.add_argument("--out", type=Path, help="JSON file for the predictions")
    arguments = parser.parse_args()
    layers, intensities = predict_layers(arguments.device), arithmetic_intensities(arguments.device)
    print(
        f"predicted microseconds, {arguments.device}: position term of a layer, 3x3 convolution with the same channels"
    )
    names = ("forward", "backward", "convolution", "convolution_backward")
    rows = [
        [f"{row['side']}x{row['side']}", str(row["v"]), *(f"{row[f'{name}_us']:.0f}" for name in names)]
        for row in layers
    ]
    print(markdown_table(["map", "v", "forward", "backward", "convolution forward", "backward"], *rows))
    intensity = {(row["kernel"], row["v"]): round(row["operations_per_byte"]) for row in intensities}
    rows = [
        [kernel, *(str(intensity.get((kernel, v), "")) for _, v in LAYERS)]
        for kernel in dict.fromkeys(row["kernel"] for row in intensities)
    ]
    print("\n" + markdown_table(["kernel", *(f"v = {v}" for _, v in LAYERS)], *rows))
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        content = {"device": arguments.device, "layers": layers, "operations_per_byte": intensities}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
