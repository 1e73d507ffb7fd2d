"""A case: contestants are built, checked against float64, and those that are right are measured side by side."""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.errors import is_out_of_memory
from lambdanets.evidence.benchmark.allocations import peak_bytes
from lambdanets.evidence.benchmark.peers import LeftOut
from lambdanets.evidence.benchmark.reference import Error, Expected
from lambdanets.evidence.benchmark.timing import interleave, is_noisy

NOT_REACHED = "not reached before the end"


@dataclass(frozen=True)
class Prepared:
    """A contestant ready to run: the work that is measured, the errors of what it gave when last run, its release."""

    work: Callable[[], Any]
    errors: Callable[[], dict[str, Error]]
    release: Callable[[], Any]


@dataclass(frozen=True)
class Contestant:
    """A name and how to make it ready, which raises LeftOut, or whatever it raises, where it cannot run."""

    name: str
    prepare: Callable[[], Prepared]


@dataclass(frozen=True)
class Case:
    """What is the same for all contestants: sizes and pass, in words that identify it."""

    sizes: dict[str, Any]
    contestants: Sequence[Contestant]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.sizes.items())


@dataclass
class Row:
    """What became of a contestant in a case: why it was left out, or its errors, seconds and peak bytes."""

    sizes: dict[str, Any]
    contestant: str
    left_out: str | None = None
    errors: dict[str, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None

    @property
    def noisy(self) -> bool:
        """Whether its times are too far apart to be compared."""
        return is_noisy(self.seconds)


@dataclass(frozen=True)
class Measuring:
    """How cases are measured: on which device, the time, the memory, or both; tell is told what is under way."""

    device: torch.device
    time: bool = False
    memory: bool = False
    repeats: int = 1
    seconds: float = 0.0
    seed: int = 0
    tell: Callable[[str], Any] = lambda said: None


def race(case: Case, rows: list[Row], measuring: Measuring) -> list[Row]:
    """Append a row for each contestant to rows, and fill them in; returns them.

    Nothing is measured before every contestant was checked, and nothing of one that was wrong. Interrupted, it leaves
    the rows as not reached, whatever was measured of them: fewer rounds than the others have say little.
    """
    mine = [Row(case.sizes, contestant.name, NOT_REACHED) for contestant in case.contestants]
    rows += mine
    try:
        ready = _check_all(case, mine, measuring)
        _measure(ready, {row.contestant: row for row in mine}, measuring)
    except BaseException:
        for row in mine:
            row.left_out = row.left_out or NOT_REACHED
        raise
    ready.clear()
    gc.collect()
    return mine


def _check_all(case: Case, rows: list[Row], measuring: Measuring) -> dict[str, Prepared]:
    """The contestants that are right; the rows of the others say why not."""
    ready: dict[str, Prepared] = {}
    for row, contestant in zip(rows, case.contestants, strict=True):
        measuring.tell(f"{contestant.name}, checking")
        try:
            ready[contestant.name] = _checked(row, contestant)
            row.left_out = None
        except LeftOut as reason:
            row.left_out = str(reason)
        except Exception as error:  # a rival may raise anything; ours are found by the tests
            said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            row.left_out = "out of memory" if is_out_of_memory(error) else said
    return ready


def _measure(ready: dict[str, Prepared], rows: dict[str, Row], measuring: Measuring) -> None:
    if measuring.memory:
        for name, prepared in ready.items():
            measuring.tell(f"{name}, memory")
            prepared.release()
            rows[name].peak_bytes = peak_bytes(prepared.work, measuring.device)
    if measuring.time:
        cuda = measuring.device.type == "cuda"
        interleave(
            {name: prepared.work for name, prepared in ready.items()},
            {name: rows[name].seconds for name in ready},
            repeats=measuring.repeats,
            seconds=measuring.seconds,
            seed=measuring.seed,
            synchronize=torch.cuda.synchronize if cuda else lambda: None,
            tell=measuring.tell,
        )


def _checked(row: Row, contestant: Contestant) -> Prepared:
    prepared = contestant.prepare()
    prepared.work()
    errors = prepared.errors()
    row.errors = {name: error.relative for name, error in errors.items()}
    for name, (error, allowed) in errors.items():
        if not error <= allowed:
            raise LeftOut(f"wrong: {name} is off by {error:.1e} relative to float64, allowed are {allowed:.0e}")
    return prepared


def prepare_module(
    module: nn.Module,
    x: Tensor,
    gradient: Tensor | None,
    expected: Callable[[], Expected],
    more: Callable[[], dict[str, Tensor]] | None = None,
) -> Prepared:
    """A module's forward pass without gradients, or where the gradient of its output is given, forward and backward.

    Gradients are made anew at each run, so they count as memory of the run. more: further gradients to check.
    """
    x = x.detach().clone().requires_grad_(gradient is not None)
    kept: dict[str, Tensor] = {}

    def release() -> None:
        kept.clear()
        module.zero_grad(set_to_none=True)
        x.grad = None

    def work() -> None:
        release()
        with torch.set_grad_enabled(gradient is not None):
            output = module(x)
        if gradient is not None:
            output.backward(gradient)
        kept["output"] = output.detach()

    def errors() -> dict[str, Error]:
        found = dict(kept)
        if gradient is not None:
            assert x.grad is not None
            found |= {"input gradient": x.grad} | (more() if more else {})
        return expected().check(found)

    return Prepared(work, errors, release)


@contextlib.contextmanager
def plain_float32(threads: int | None) -> Iterator[None]:
    """float32 without TF32 and the number of threads asked for; afterwards as before."""
    before = torch.get_num_threads()
    precision, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(threads or before)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = cudnn
