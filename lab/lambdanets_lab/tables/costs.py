"""Computed costs: exponents of the time of lambda layers (Tables 2, 6 and 7), and memory by the paper's formulas."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from lambdanets.ops import lambda_interaction

# At these sizes, lower-order terms such as the cost of applying lambdas change the exponents by less than this.
TOLERANCE = 0.05
_SIZES = {"b": 2, "n": 2048, "m": 2048, "k": 8, "d": 128, "h": 2}
_FACTOR = 4  # by which one of the sizes is increased
_LAYERS: dict[tuple[str, str], dict[str, Any]] = {
    ("2", "lambda layer"): {},
    ("6", "multi-head"): {"multi_head": True},
    ("6", "multi-query"): {},
    ("7", "u>1"): {"u": 2},
}

GIB, MIB = 2**30, 2**20
_BATCH, _HEADS, _FLOAT32, _BFLOAT16 = 128, 8, 4, 2

# Number of layers and of positions in each stage of ResNet-50 at 224 pixels.
_STAGES = tuple(zip((3, 4, 6, 3), (56**2, 28**2, 14**2, 7**2), strict=True))
_PAIRS = sum(layers * n**2 for layers, n in _STAGES)

# LambdaResNet-420 at 320 pixels: 8 lambda layers in c4, on 20x20 maps; 32 examples per core (E.2).
_LAYERS_420, _PAIRS_420, _EXAMPLES_420 = 8, (20**2) ** 2, 32

# Attention maps have b h n^2 elements per layer, axial ones b h n sqrt(n) for rows and for columns, embeddings k n^2
# per layer, or per resolution if layers share them. GB of the paper are GiB and MB MiB, but its 0.625 GB are 625 MiB.
_MEMORY: dict[tuple[str, str], float] = {
    ("4", "global self-attention"): _BATCH * _HEADS * _FLOAT32 * _PAIRS / GIB,
    ("4", "axial self-attention"): 2 * _BATCH * _HEADS * _FLOAT32 * sum(x * n**1.5 for x, n in _STAGES) / GIB,
    ("4", "lambda layer"): 16 * _FLOAT32 * _PAIRS / GIB,
    ("4", "lambda layer k=8"): 8 * _FLOAT32 * _PAIRS / GIB,
    ("4", "lambda layer shared embeddings"): 16 * _FLOAT32 * sum(n**2 for _, n in _STAGES) / GIB,
    ("E.2", "LambdaResNet-420 at 320, lambda layers"): _LAYERS_420 * 16 * _PAIRS_420 * _BFLOAT16 / MIB,
    ("E.2", "LambdaResNet-420 at 320, shared embeddings"): 16 * _PAIRS_420 * _BFLOAT16 / MIB,
    ("E.2", "LambdaResNet-420 at 320, attention instead"): (
        _EXAMPLES_420 * _HEADS * _LAYERS_420 * _PAIRS_420 * _BFLOAT16 / MIB / 1000
    ),
    ("fn2", "one 8-head attention, batch 128, 64x64"): _BATCH * _HEADS * (64**2) ** 2 * _FLOAT32 / GIB,
}


@functools.cache
def exponents(table: str, row: str) -> dict[str, float] | None:
    """Return the exponents of multiply-adds counted on the meta device; None for a row that is not a lambda layer."""
    if (table, row) not in _LAYERS:
        return None
    sizes = _SIZES | _LAYERS[table, row]
    increased = {name: sizes | {name: sizes[name] * _FACTOR} for name in sizes if name != "multi_head"}
    return {
        name: math.log(_multiply_adds(**others) / _multiply_adds(**sizes), _FACTOR)
        for name, others in increased.items()
    }


def matches_term(term: str, exponents: Mapping[str, float]) -> bool:
    """Whether exponents equal those of a term such as 'bnmkd/h', and 0 for sizes that it does not contain."""
    numerator, _, denominator = term.partition("/")
    expected = dict.fromkeys(numerator, 1) | dict.fromkeys(denominator, -1)
    return all(abs(exponent - expected.get(name, 0)) <= TOLERANCE for name, exponent in exponents.items())


def _multiply_adds(
    *, b: int, n: int, m: int, k: int, d: int, h: int, u: int | None = None, multi_head: bool = False
) -> float:
    lead, intra_depth = (h,) if multi_head else (), () if u is None else (u,)
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        lambda_interaction(
            torch.empty(b, h, n, k),
            torch.empty(b, *lead, m, k, *intra_depth),
            torch.empty(b, *lead, m, d // h, *intra_depth),
            torch.empty(*lead, n, m, k, *intra_depth),
            multi_head=multi_head,
        )
    return counter.get_total_flops() / 2


def paper_memory(table: str, row: str) -> float | None:
    """Return the memory of a row in the paper's unit; None if the paper has no formula for it."""
    return _MEMORY.get((table, row))
