"""Measure the candidates of a case: build them, verify those of layers, and time the correct ones interleaved."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.errors import is_out_of_memory
from lambdanets_lab.benchmark.peak_memory import peak_bytes
from lambdanets_lab.benchmark.peers import Skipped
from lambdanets_lab.benchmark.reference import Error, Expected
from lambdanets_lab.timing import is_noisy, time_interleaved

NOT_REACHED = "not reached before the end"


@dataclass(frozen=True)
class Prepared:
    """A built candidate.

    run: the function to measure. errors: those of its last run, if they are verified. release: frees its memory.
    """

    run: Callable[[], Any]
    errors: Callable[[], dict[str, Error]]
    release: Callable[[], Any]


@dataclass(frozen=True)
class Candidate:
    """A name and a function that builds the candidate. It raises Skipped, or any error, if the candidate cannot run."""

    name: str
    prepare: Callable[[], Prepared]


@dataclass(frozen=True)
class Case:
    """Candidates to compare, with the same sizes and pass. These identify the case.

    baseline: the candidate that printed ratios refer to.
    """

    sizes: dict[str, Any]
    candidates: Sequence[Candidate]
    baseline: str | None = None

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.sizes.items())


@dataclass
class Row:
    """The result of a candidate in a case: errors, seconds and peak bytes, or the reason why it was skipped."""

    sizes: dict[str, Any]
    candidate: str
    skip_reason: str | None = None
    errors: dict[str, float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None

    @property
    def noisy(self) -> bool:
        """Whether the times vary too much to be compared."""
        return is_noisy(self.seconds)


@dataclass(frozen=True)
class MeasureOptions:
    """Options of `measure_case`: the device, those of `time_interleaved`, and a callback for progress messages."""

    device: torch.device
    repeats: int = 1
    seconds: float = 0.0
    seed: int = 0
    on_progress: Callable[[str], Any] = lambda message: None


def measure_case(case: Case, rows: list[Row], options: MeasureOptions) -> list[Row]:
    """Measure the candidates of a case; append one row for each to rows, and return the new rows.

    All candidates are verified before the first is measured, and incorrect ones are skipped. After an interruption all
    rows of the case are marked as not reached, since incomplete rounds are not comparable.
    """
    new_rows = [Row(case.sizes, candidate.name, NOT_REACHED) for candidate in case.candidates]
    rows += new_rows
    try:
        correct = _check_all(case, new_rows, options)
        _measure(correct, {row.candidate: row for row in new_rows}, options)
    except BaseException:
        for row in new_rows:
            row.skip_reason = row.skip_reason or NOT_REACHED
        raise
    correct.clear()
    gc.collect()
    return new_rows


def _check_all(case: Case, rows: list[Row], options: MeasureOptions) -> dict[str, Prepared]:
    """Return the correct candidates; set the reason in the rows of the others."""
    correct: dict[str, Prepared] = {}
    for row, candidate in zip(rows, case.candidates, strict=True):
        options.on_progress(f"{candidate.name}, checking")
        try:
            correct[candidate.name] = _prepare_and_check(row, candidate)
            row.skip_reason = None
        except Skipped as reason:
            row.skip_reason = str(reason)
        except Exception as error:  # other packages may raise any exception
            message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            row.skip_reason = "out of memory" if is_out_of_memory(error) else message
    return correct


def _measure(candidates: dict[str, Prepared], rows: dict[str, Row], options: MeasureOptions) -> None:
    for name, prepared in candidates.items():
        options.on_progress(f"{name}, memory")
        prepared.release()
        rows[name].peak_bytes = peak_bytes(prepared.run, options.device)
    time_interleaved(
        {name: prepared.run for name, prepared in candidates.items()},
        {name: rows[name].seconds for name in candidates},
        repeats=options.repeats,
        seconds=options.seconds,
        seed=options.seed,
        synchronize=torch.cuda.synchronize if options.device.type == "cuda" else lambda: None,
        on_progress=options.on_progress,
    )


def _prepare_and_check(row: Row, candidate: Candidate) -> Prepared:
    prepared = candidate.prepare()
    prepared.run()
    errors = prepared.errors()
    row.errors = {name: error.relative for name, error in errors.items()}
    for name, (error, tolerance) in errors.items():
        if not error <= tolerance:
            raise Skipped(f"wrong: {name} has a relative error of {error:.1e}, the tolerance is {tolerance:.0e}")
    return prepared


def prepare_module(
    module: nn.Module,
    x: Tensor,
    grad_output: Tensor | None,
    expected: Callable[[], Expected],
    extra_gradients: Callable[[], dict[str, Tensor]] | None = None,
) -> Prepared:
    """Prepare the forward pass of a module without gradients or, if grad_output is given, forward and backward.

    Each run allocates its gradients, so they count as its memory. extra_gradients: returns further gradients to
    verify, by name.
    """
    x = x.detach().clone().requires_grad_(grad_output is not None)
    last_output: dict[str, Tensor] = {}

    def release() -> None:
        last_output.clear()
        module.zero_grad(set_to_none=True)
        x.grad = None

    def run() -> None:
        release()
        with torch.set_grad_enabled(grad_output is not None):
            output = module(x)
        if grad_output is not None:
            output.backward(grad_output)
        last_output["output"] = output.detach()

    def errors() -> dict[str, Error]:
        actual = dict(last_output)
        if grad_output is not None:
            assert x.grad is not None
            actual |= {"input gradient": x.grad} | (extra_gradients() if extra_gradients else {})
        return expected().check(actual)

    return Prepared(run, errors, release)


def set_measurement_options(threads: int | None) -> None:
    """Switch TF32 off in this process, and set the number of CPU threads, if it is given."""
    torch.set_num_threads(threads or torch.get_num_threads())
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
