"""Options of `lambdanets benchmark`: one dataclass per kind of benchmark."""

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, PositiveFloat, PositiveInt

from lambdanets.records import record

T = TypeVar("T")
NotEmpty = Annotated[tuple[T, ...], Field(min_length=1)]
Pass = Literal["inference", "training"]
Shape = Annotated[str, Field(pattern=r"^[1-9]\d*x[1-9]\d*x[1-9]\d*$")]
Pattern = Annotated[str, Field(pattern="^[CL]{4}$")]


@record
class CommonOptions:
    """Options of all benchmarks."""

    candidates: NotEmpty[str] | None = None
    """Names of the layers, models or algorithms to measure, baselines included."""
    device: Literal["cpu", "cuda"] | None = None
    """Device to measure on; cuda by default if PyTorch finds a GPU, else cpu."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Data type of inputs and weights. TF32 is switched off."""
    threads: PositiveInt | None = None
    """Number of CPU threads; by default that of PyTorch."""
    passes: NotEmpty[Pass] = ("inference", "training")
    """inference: the forward pass in eval mode; training: forward and backward in training mode."""
    batch_size: PositiveInt = 8
    """Feature maps or images per batch."""
    repeats: PositiveInt = 20
    """Maximum number of timed runs per candidate and case."""
    seconds: PositiveFloat = 10.0
    """Time budget per candidate and case; slow candidates get fewer runs, at least three."""
    out: Path | None = None
    """Folder for results and plots; an interrupted benchmark in it is resumed. By default benchmark-KIND-DATE-TIME."""


@record
class Layer(CommonOptions):
    """Time and peak memory of lambda layers, ours and other packages', local attention and the 3x3 convolution.

    Outputs and gradients are verified against float64 first. Other mixers are measured if --candidates names them.
    """

    shapes: NotEmpty[Shape] = ("56x56x64", "28x28x128", "28x28x256", "14x14x256", "14x14x512", "7x7x512")
    """Feature maps as HEIGHTxWIDTHxCHANNELS."""
    scopes: NotEmpty[PositiveInt] = (23, 7)
    """Scopes of the lambda layers: m x m positions around each position."""
    query_depth: PositiveInt = 16
    """Depth of queries and keys, k."""
    heads: PositiveInt = 4
    """Number of heads h, of lambda layers and of attention."""


@record
class Model(CommonOptions):
    """Throughput of ResNet-50 with lambda layers in some stages, relative to ResNet-50 without them."""

    patterns: NotEmpty[Pattern] = ("CCCL", "CCLL", "CLLL", "LLLL")
    """Convolutions (C) or lambda layers (L) in each of stages c2 to c5. ResNet-50 itself, CCCC, is always measured."""
    image_size: PositiveInt = 224
    """Side of the images in pixels."""
    scope: PositiveInt = 23
    """Scope of the lambda layers: m x m positions around each position."""


@record
class Scaling(CommonOptions):
    """Time and peak memory of each algorithm of the position term, as the number of positions n grows."""

    sides: tuple[PositiveInt, ...] = (14, 20, 28, 40, 56, 80, 112, 160, 224, 256)
    """Sides of square feature maps with global scope; n = side x side."""
    lengths: tuple[PositiveInt, ...] = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
    """Lengths of causal sequences with global scope; n = length."""
    batch_size: PositiveInt = 1
    """Maps or sequences per batch."""
    query_depth: PositiveInt = 16
    """Depth of queries, k."""
    heads: PositiveInt = 4
    """Number of heads h, of the position term and of attention."""
    value_depth: PositiveInt = 16
    """Depth of values, v."""
    repeats: PositiveInt = 7
    """Maximum number of timed runs per candidate and case."""


# Passes that are measured for each table.
TABLE_PASSES: dict[str, tuple[Pass, ...]] = {
    "4": ("inference", "training"),
    "5": ("training", "inference"),
    "10": ("inference",),
    "12": ("inference",),
    "13": ("inference",),
    "18": ("training",),
}


@record
class Tables(CommonOptions):
    """Speed and peak memory of the models in the paper's tables, for `lambdanets tables --measured`."""

    tables: NotEmpty[Literal["4", "5", "10", "12", "13", "18"]] = ("4", "5", "10", "12", "13", "18")
    """Numbers of the tables; all of them take hours on a CPU."""
    batch_size: PositiveInt = 4
    """Images per batch."""
    image_size: PositiveInt | None = None
    """Side of the images in pixels; by default that of each row in the paper."""
    repeats: PositiveInt = 3
    """Maximum number of timed runs per candidate and case."""
    seconds: PositiveFloat = 60.0
    """Time budget per candidate and case; slow candidates get fewer runs, at least three."""


OPTIONS: dict[str, type[CommonOptions]] = {"layer": Layer, "model": Model, "scaling": Scaling, "tables": Tables}
