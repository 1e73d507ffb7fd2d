"""The interface of algorithms: for which problems they are, what they cost, and the computation."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from lambdanets.ops.precision import accumulation_dtype, widen_float16

# Work is in multiply-adds of large products. A PyTorch call costs as much as CALL of them, and small
# products cost as if each side were larger by SIDE.
CALL, SIDE = 400_000, 5


class Problem(NamedTuple):
    """Sizes, dtype and device of a position interaction, on which the choice of an algorithm depends.

    before, after: number of offsets below and above 0 in the table, along each axis of the grid. The
    sides of the table are before + 1 + after, and offset 0 is at index `before`.
    causal: use only context positions up to and including the query in row-major order; `after` is
    then 0 along the first axis.
    device: "cpu", or "cuda:0" and so on, since a machine may have different GPUs; "cuda" is the
    current GPU.
    channels_first: whether the output should be in memory as (b, h, v, n), which algorithms may ignore.
    """

    batch: int
    heads: int
    grid: tuple[int, ...]
    query_depth: int
    value_depth: int
    intra_depth: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    causal: bool
    dtype: torch.dtype
    device: str
    channels_first: bool = False

    @property
    def num_positions(self) -> int:
        """Number of query positions n, which is also the number of context positions."""
        return math.prod(self.grid)

    @property
    def scope(self) -> tuple[int, ...]:
        """The sides of the table."""
        return tuple(before + 1 + after for before, after in zip(self.before, self.after, strict=True))

    @property
    def is_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"


@dataclass(frozen=True)
class Cost:
    """The cost of an algorithm for a problem.

    multiply_adds: of the forward pass. workspace_bytes: memory in addition to inputs and output, in
    the pass that needs more; of `native`, that of one team of threads. work: time of the forward
    pass in multiply-adds of large products, by which algorithms are compared.
    """

    multiply_adds: float
    workspace_bytes: int
    work: float


class Needs(NamedTuple):
    """Which derivatives of <g, y> are needed, where g is the gradient of the output y.

    output: that along g, which is y. queries, table, values, content: the gradients of the factors.
    """

    output: bool = False
    queries: bool = False
    table: bool = False
    values: bool = False
    content: bool = False


Factors = tuple[Tensor, Tensor, Tensor, Tensor | None]  # queries, table, values, content
# Tensors that an algorithm computes only from the table, for both passes of all examples.
Prepared = tuple[Tensor, ...]
Inputs = tuple[Tensor, Prepared, Tensor, Tensor | None]  # of an algorithm: the factors, with the table prepared
# Output, and gradients of the inputs; None if not needed
Derivatives = tuple[Tensor | None, Tensor | None, Prepared | None, Tensor | None, Tensor | None]


class Algorithm(ABC):
    """An exact algorithm with all parameters, such as tile sizes, chosen for one problem. Thread-safe.

    Tensors are queries (b, h, n, k), values (b, n, v, u), a content lambda (b, k, v) or None, and
    grad_output (b, h, n, v).

    name: value of the `algorithm` argument of functions.
    dtype: of queries, values, content, grad_output and the prepared table. result_dtype: of the interaction.
    batch: maximum number of examples of a call; `position_term.py` splits larger batches.
    note: what a user may want to know, for example the library.
    """

    name: ClassVar[str]
    note = ""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.batch = problem, problem.batch
        self.dtype, self.result_dtype = accumulation_dtype(problem.dtype), widen_float16(problem.dtype)

    def __reduce__(self) -> tuple[Any, ...]:  # to copy and pickle plans; what it points to is made again
        return type(self), (self.problem,)

    @classmethod
    def unsupported(cls, problem: Problem) -> str:
        """Why the algorithm does not support the problem, or ""."""
        return ""

    def fault(self) -> str:
        """Why "auto" must not choose the algorithm, or ""."""
        return ""

    @abstractmethod
    def cost(self) -> Cost:
        """The cost of all examples of the problem."""

    @abstractmethod
    def prepare(self, table: Tensor) -> Prepared:
        """Compute what depends only on the table (r_1..r_D, k, u), where r = before + 1 + after.

        In a causal problem `after` is 0 along the first axis, and the future offsets in the last row
        are already zero. The result may be a view of the table.
        """

    @abstractmethod
    def derive(self, grad_output: Tensor | None, inputs: Inputs, needs: Needs) -> Derivatives:
        """Compute the output (b, h, n, v), the needed gradients, or both. grad_output: None without gradients.

        Gradients of the prepared tensors must own their memory, because those of later calls are added in
        place. Split sums over positions, for example by rows of the grid: a single float32 sum over
        all positions exceeds the error budget.
        """

    @abstractmethod
    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        """Compute the gradient of the table from those of the prepared tensors."""


def matmul_work(count: float, rows: float, inner: float, columns: float) -> float:
    """The work of `count` matrix products of (rows, inner) and (inner, columns)."""
    return count * (rows + SIDE) * (inner + SIDE) * (columns + SIDE)


def grad_of_content(queries: Tensor, grad_output: Any) -> Tensor:
    """Sum q (b, h, n, k) times g (b, h, n, v) over h and n, which gives (b, k, v)."""
    queries, grad_output = (x.to(grad_output.dtype).transpose(1, 2).flatten(1, 2) for x in (queries, grad_output))
    return torch.bmm(queries.mT, grad_output)
