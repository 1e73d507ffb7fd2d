"""What can be asked of a benchmark: a dataclass a kind, whose fields are the options of the command."""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lambdanets.errors import InputError, nearest

Pass = Literal["inference", "training"]


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of every kind. Raises InputError for values that do not fit, each other or at all."""

    contestants: tuple[str, ...] | None = None
    """Those to run, by name; all if not given."""
    device: Literal["cpu", "cuda"] | None = None
    """By default cuda where there is a GPU."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of inputs and weights. float32 means float32: TF32 is switched off."""
    threads: int | None = None
    """Threads of the processor; as many as PyTorch takes if not given."""
    passes: tuple[Pass, ...] = ("inference", "training")
    """inference is the forward pass in evaluation mode; training is forward and backward in training mode."""
    seed: int = 0
    """Of weights, inputs and the order within each round."""
    out: Path | None = None
    """Folder for results and plots; must not exist. By default benchmark-KIND-DATE-TIME."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Timed(Common):
    """Options of the kinds that measure time."""

    repeats: int = 20
    """Timed runs of each contestant in each case, at most."""
    seconds: float = 10.0
    """Time for the runs of one contestant in one case; a slow one gets fewer, and three at least."""


@dataclass(frozen=True, kw_only=True)
class Shapes(Common):
    """Options of the kinds that run single layers."""

    shapes: tuple[str, ...] = ("56x56x64", "28x28x128", "28x28x256", "14x14x256", "14x14x512", "7x7x512")
    """Maps as HEIGHTxWIDTHxCHANNELS."""
    scopes: tuple[int, ...] = (23, 7)
    """Sides of the position context."""
    batch_size: int = 8
    """Maps a batch."""
    query_depth: int = 16
    """k, the depth of queries and keys."""
    heads: int = 4
    """h, the queries that share a lambda; heads of the attention rivals."""
    algorithm: str = "auto"
    """Of our position term, a name that lambdanets.plan prints."""


@dataclass(frozen=True, kw_only=True)
class Layer(Shapes, Timed):
    """Time of a layer, beside its peers and the 3x3 convolution."""


@dataclass(frozen=True, kw_only=True)
class Memory(Shapes):
    """Peak memory of a layer, beside its peers and the 3x3 convolution."""

    passes: tuple[Pass, ...] = ("training",)
    """inference is the forward pass in evaluation mode; training is forward and backward in training mode."""


@dataclass(frozen=True, kw_only=True)
class Model(Timed):
    """Throughput of ResNet-50 with lambda layers in its stages, relative to the plain one."""

    patterns: tuple[str, ...] = ("CCCL", "CCLL", "CLLL", "LLLL")
    """Stages c2 to c5 on convolutions (C) or lambda layers (L); plain ResNet-50, CCCC, always runs."""
    image_size: int = 224
    """Side of the images, pixels."""
    batch_size: int = 8
    """Images a batch."""
    scope: int = 23
    """Side of the position context."""
    algorithm: str = "auto"
    """Of our position term, a name that lambdanets.plan prints."""


@dataclass(frozen=True, kw_only=True)
class Scaling(Timed):
    """Time and peak memory of each algorithm of the position term against the number of positions n."""

    sides: tuple[int, ...] = (14, 20, 28, 40, 56, 80, 112, 160, 224, 256)
    """Of square maps with global scope, n = side x side."""
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
    """Of causal sequences with global scope, n = length."""
    batch_size: int = 1
    """Maps or sequences a batch."""
    query_depth: int = 16
    """k, the depth of queries."""
    heads: int = 4
    """h, the queries that share a lambda; heads of attention."""
    value_depth: int = 16
    """v, the depth of values."""
    repeats: int = 7
    """Timed runs of each contestant in each case, at most."""
    memory: float | None = None
    """GiB a contestant may hold; half of what is free if not given."""


KINDS: dict[str, type[Common]] = {"layer": Layer, "model": Model, "memory": Memory, "scaling": Scaling}


def _check(options: Common) -> None:
    """Raise InputError for a number that is not positive, an empty list, an even scope, or a shape in other words."""
    for name, value in vars(options).items():
        values = value if isinstance(value, tuple) else (value,)
        if not values and name not in ("sides", "lengths"):
            raise InputError(f"{_flag(name)} needs at least one value")
        for number in values:
            if name != "seed" and isinstance(number, int | float) and not 0 < number < math.inf:
                raise InputError(f"{_flag(name)} must be positive and finite, got {number}")
    if isinstance(options, Shapes):
        for shape in options.shapes:
            if not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", shape):
                raise InputError(f"--shapes must be like 28x28x128, height, width and channels; got {shape!r}")
            if parse_shape(shape)[2] % options.heads:
                raise InputError(f"--shapes must have channels divisible by {options.heads} heads, got {shape}")
    if isinstance(options, Model):
        for pattern in options.patterns:
            if not re.fullmatch("[CL]{4}", pattern):
                raise InputError(f"--patterns must be four letters, C or L for each of c2 to c5; got {pattern!r}")
    if isinstance(options, Scaling) and not (options.sides or options.lengths):
        raise InputError("--sides and --lengths are both empty; give one of them")
    if isinstance(options, Scaling) and options.heads > options.query_depth:
        raise InputError(f"--heads must be at most --query-depth, whose table attention takes; got {options.heads}")
    scopes = options.scopes if isinstance(options, Shapes) else (options.scope,) if isinstance(options, Model) else ()
    if even := [scope for scope in scopes if scope % 2 == 0]:
        raise InputError(f"a scope must be odd, so that a position has as many on either side; got {even[0]}")


def check_contestants(options: Common, known: list[str]) -> None:
    """Raise InputError for a name that is no contestant of the kind."""
    for name in options.contestants or ():
        if name not in known:
            raise InputError(f"--contestants must be of {', '.join(known)}; got {name!r}{nearest(name, known)}")


def parse_shape(shape: str) -> tuple[int, int, int]:
    """Height, width and channels of a shape like 28x28x128."""
    height, width, channels = map(int, shape.split("x"))
    return height, width, channels


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
