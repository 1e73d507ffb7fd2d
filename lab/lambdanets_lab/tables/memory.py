"""The paper's formulas for the memory of attention maps and embeddings (Table 4, E.2, footnote 2)."""

from collections.abc import Callable

GIB, MIB = 2**30, 2**20
_BATCH, _HEADS, _FLOAT32, _BFLOAT16 = 128, 8, 4, 2

# Number of layers and of positions in each stage of ResNet-50 at 224 pixels.
_STAGES = tuple(zip((3, 4, 6, 3), (56**2, 28**2, 14**2, 7**2), strict=True))

# LambdaResNet-420 at 320 pixels: 8 lambda layers in c4, on 20x20 maps; 32 examples per core (E.2).
_LAYERS_420, _POSITIONS_420, _EXAMPLES_420 = 8, 20**2, 32


def global_attention() -> float:
    """Global self-attention: b h n^2 per layer, one attention map per example and head."""
    return _BATCH * _HEADS * _FLOAT32 * sum(layers * n**2 for layers, n in _STAGES)


def axial_attention() -> float:
    """Axial self-attention: b h n sqrt(n) per layer, for rows and for columns."""
    return 2 * _BATCH * _HEADS * _FLOAT32 * sum(layers * n**1.5 for layers, n in _STAGES)


def lambda_layers(query_depth: int, *, shared: bool = False) -> float:
    """Lambda layers: k n^2 per layer, or per resolution if layers share embeddings, independent of the batch size."""
    return query_depth * _FLOAT32 * sum((1 if shared else layers) * n**2 for layers, n in _STAGES)


def lambda_layers_420(layers: int) -> float:
    """Lambda layers of LambdaResNet-420: k n^2 per layer, in bfloat16."""
    return layers * 16 * _POSITIONS_420**2 * _BFLOAT16


def attention_420() -> float:
    """Attention in place of LambdaResNet-420's lambda layers: b h n^2 per layer, in bfloat16."""
    return _EXAMPLES_420 * _HEADS * _LAYERS_420 * _POSITIONS_420**2 * _BFLOAT16


def one_attention_layer() -> float:
    """One layer with 8 heads on 128 maps of 64x64."""
    return _BATCH * _HEADS * (64**2) ** 2 * _FLOAT32


# In the unit of the row. The paper's GB are GiB and its MB are MiB, except that its 0.625 GB are 625 MiB.
_FORMULAS: dict[tuple[str, str], Callable[[], float]] = {
    ("4", "global self-attention"): lambda: global_attention() / GIB,
    ("4", "axial self-attention"): lambda: axial_attention() / GIB,
    ("4", "lambda layer"): lambda: lambda_layers(16) / GIB,
    ("4", "lambda layer k=8"): lambda: lambda_layers(8) / GIB,
    ("4", "lambda layer shared embeddings"): lambda: lambda_layers(16, shared=True) / GIB,
    ("E.2", "LambdaResNet-420 at 320, lambda layers"): lambda: lambda_layers_420(_LAYERS_420) / MIB,
    ("E.2", "LambdaResNet-420 at 320, shared embeddings"): lambda: lambda_layers_420(1) / MIB,
    ("E.2", "LambdaResNet-420 at 320, attention instead"): lambda: attention_420() / MIB / 1000,
    ("fn2", "one 8-head attention, batch 128, 64x64"): lambda: one_attention_layer() / GIB,
}


def paper_memory(table: str, row: str) -> float | None:
    """Compute the memory of a row in the paper's unit; None if the paper has no formula for it."""
    formula = _FORMULAS.get((table, row))
    return None if formula is None else formula()
