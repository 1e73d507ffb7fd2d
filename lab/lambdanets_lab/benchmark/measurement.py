"""Measure the candidates of a case: build them, verify those of layers, and time the correct ones interleaved."""

import gc
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lambdanets.errors import is_out_of_memory
from lambdanets.signals import check_signals
from lambdanets_lab.benchmark.peers import Skipped
from lambdanets_lab.timing import summarize, time_interleaved

# Tolerances of the relative error of outputs and gradients; the errors of a wrong formula are much larger.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
Tensors = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A built candidate: the forward pass of a function, with grad_output also the backward pass.

    inputs: arguments of the function.
    parameters: tensors that get gradients beside the inputs that require them.
    expected: computes in float64 what `run` must return, if the candidate is verified.
    """

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    grad_output: Tensor | None = None
    parameters: Sequence[Tensor] = ()
    expected: Callable[[], Tensors] | None = None

    def run(self) -> Tensors:
        """Return the output and, with grad_output, the gradient of the first input or, if it has none, parameter."""
        with torch.set_grad_enabled(self.grad_output is not None):
            output = self.function(*self.inputs)
        if self.grad_output is None:
            return {"output": output}
        differentiable = [tensor for tensor in (*self.inputs, *self.parameters) if tensor.requires_grad]
        gradients = torch.autograd.grad(output, differentiable, self.grad_output, allow_unused=True)
        return {"output": output.detach(), "input gradient": gradients[0]}


@dataclass(frozen=True)
class Case:
    """Candidates to compare, with the same sizes and pass. These identify the case.

    candidates: by name, a function that builds the candidate. It raises Skipped, or any error, if it cannot run.
    baseline: the candidate that printed ratios refer to.
    """

    sizes: dict[str, Any]
    candidates: Mapping[str, Callable[[], Prepared]]
    baseline: str | None = None


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
    def median(self) -> float | None:
        """The median time; None if it was not measured."""
        return summarize(self.seconds).median if self.seconds else None


def measure_case(
    case: Case,
    device: torch.device,
    *,
    repeats: int,
    seconds: float,
) -> list[Row]:
    """Measure the candidates of a case; return one row for each.

    All candidates are verified before the first is measured, and incorrect ones are skipped. The other arguments are
    those of `time_interleaved`.
    """
    rows = {name: Row(case.sizes, name) for name in case.candidates}
    runs: dict[str, Callable[[], Any]] = {}
    for name, prepare in case.candidates.items():
        check_signals()
        try:
            runs[name], rows[name].errors, rows[name].peak_bytes = _check(prepare(), device)
        except Skipped as reason:
            rows[name].skip_reason = str(reason)
        except Exception as error:  # other packages may raise any exception
            message = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            rows[name].skip_reason = "out of memory" if is_out_of_memory(error) else message
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    samples = time_interleaved(runs, repeats=repeats, seconds=seconds, synchronize=synchronize)
    for name, times in samples.items():
        rows[name].seconds = times
    runs.clear()
    gc.collect()
    return [*rows.values()]


def _check(prepared: Prepared, device: torch.device) -> tuple[Callable[[], Any], dict[str, float], int]:
    """Return the function to time, its errors, and its peak memory. Raises Skipped if an error is too large."""
    outputs, expected = prepared.run(), prepared.expected() if prepared.expected else {}
    errors = {name: relative_error(outputs[name], tensor) for name, tensor in expected.items()}
    for name, error in errors.items():
        if not error <= (tolerance := TOLERANCE[prepared.inputs[0].dtype]):
            expectation = f"the tolerance is {tolerance:.0e}"
            raise Skipped(f"wrong: {name} has a relative error of {error:.1e}, {expectation}")
    outputs.clear()
    return prepared.run, errors, peak_bytes(prepared.run, device)


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Return the relative L2 error; inf for non-finite values or another shape."""
    if actual.shape != expected.shape or not all(x.isfinite().all() for x in (actual, expected)):
        return float("inf")
    difference = actual.detach().double() - expected.detach()
    return float(difference.norm() / expected.detach().norm().clamp(min=torch.finfo(torch.float64).tiny))


def peak_bytes(work: Callable[[], Any], device: torch.device) -> int:
    """Return the peak of the bytes that PyTorch allocates during work(), minus the bytes allocated before.

    On a GPU this is `torch.cuda.max_memory_allocated`. On a CPU the profiler records each allocation and release of
    PyTorch's allocator, and the peak is the maximum of the running sum. This is exact and reproducible, unlike the
    resident memory of the process, which depends on earlier releases, page size and threads. Scratch memory of oneDNN
    comes from the same allocator and is included; buffers of a BLAS library are not.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler writes to the terminal
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        work()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    memory = [event for event in events if event.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(memory, key=lambda event: event.start_ns()))
    return max(itertools.accumulate(changes, initial=0))
