"""Computed costs: multiply-adds of lambda layers (Tables 2, 6 and 7), and memory by the paper's formulas."""

import math

import torch
from torch.utils.flop_counter import FlopCounterMode

from lambdanets.ops import lambda_interaction

# All differ, so that each factor of a term shows; m is large, since the paper's terms omit the application of lambdas.
_SIZES = {"b": 3, "n": 2048, "m": 1024, "k": 8, "d": 160, "h": 5, "v": 160 // 5, "u": 2}
# Axes that keys, values and embeddings of a layer have in addition: the first one, and the last one.
_LAYERS = {
    ("2", "lambda layer"): ("", ""),
    ("6", "multi-head"): ("h", ""),
    ("6", "multi-query"): ("", ""),
    ("7", "u>1"): ("", "u"),
}

GIB, MIB = 2**30, 2**20
_BATCH, _HEADS, _FLOAT32, _BFLOAT16 = 128, 8, 4, 2

# Number of layers and of positions in each stage of ResNet-50 at 224 pixels.
_STAGES = tuple(zip((3, 4, 6, 3), (56**2, 28**2, 14**2, 7**2), strict=True))
_PAIRS = sum(layers * n**2 for layers, n in _STAGES)

# LambdaResNet-420 at 320 pixels: 8 lambda layers in c4, on 20x20 maps; 32 examples per core (E.2).
_LAYERS_420, _PAIRS_420, _EXAMPLES_420 = 8, (20**2) ** 2, 32

# In the paper's unit, by table and row. Attention maps have b h n^2 elements per layer, axial ones b h n sqrt(n) for
# rows and for columns, embeddings k n^2 per layer, or per resolution if layers share them. GB of the paper are GiB and
# MB MiB, but its 0.625 GB are 625 MiB.
MEMORY: dict[tuple[str, str], float] = {
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


def multiply_adds_per_term(table: str, row: str, term: str) -> float | None:
    """Return the multiply-adds of a lambda layer at _SIZES / a term such as "bnmkd/h"; None for other layers."""
    if (table, row) not in _LAYERS:
        return None
    h, u = _LAYERS[table, row]
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        shapes = "bhnk", f"b{h}mk{u}", f"b{h}mv{u}", f"{h}nmk{u}"
        factors = [torch.empty([_SIZES[axis] for axis in shape]) for shape in shapes]
        lambda_interaction(*factors, multi_head=bool(h))
    numerator, denominator = (math.prod(_SIZES[axis] for axis in part) for part in (*term.split("/"), "")[:2])
    return counter.get_total_flops() / 2 * denominator / numerator
