"""Native: a compiled CPU kernel that fuses Fourier transforms along two axes with the products, tile by tile in cache.

`native/kernel.c` has the method. This file finds the library for the processor, chooses the lengths of the transforms
(`native_lengths.py`), and calls the kernel through ctypes.
"""

import ctypes
import itertools
import math
import os
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from lambdanets.errors import KernelWarning
from lambdanets.ops.position.algorithm import CALL, Algorithm, Cost, Derivatives, Inputs, Needs, Prepared, Problem
from lambdanets.ops.position.native_lengths import Transforms, choose_transforms, twiddles

FOLDER = Path(__file__).with_name("libraries")
# By the first letters of PyTorch's name of the instruction set, which ATEN_CPU_CAPABILITY can lower. A processor runs
# those after its own too, if they are installed: of one machine. AVX10 may lack vectors of 512 bits.
_LIBRARIES = (
    ("AVX512", "x86-64-v4"),
    ("AVX10", "x86-64-v3"),
    ("AVX2", "x86-64-v3"),
    ("", "x86-64-v2"),
    ("", "aarch64"),
)
WIDE, NARROW, FLOAT64 = 0, 1, 2  # kernels of a library: float32 in wide and in narrow vectors, float64

_L2_BYTES = 1 << 20
_WORK = 0.95  # of a multiply-add: as fast as query_order at equal work, with 4, 8 and 16 lanes
_STREAMED_BYTES = 16 << 20  # maps above this size are written past the cache
# Causal sums are computed again for the first 1 / _SHRINK of the positions, and so on.
_SHRINK, _MIN_POSITIONS = 4, 16
_MAX_SCRATCH_BYTES = 1 << 30  # above it, maps have fewer query depths, which is slower


class _Axis(ctypes.Structure):
    _fields_ = (
        ("n", ctypes.c_int),
        ("levels", ctypes.c_int),
        ("f", ctypes.c_int * 3),
        ("streamed", ctypes.c_ssize_t),
        ("twiddles", ctypes.c_void_p * 2),
    )


class _Problem(ctypes.Structure):
    """The struct `problem` of native.h."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("b", "h", "k", "v", "u", "depth", "H", "W", "sequence")),
        *((name, ctypes.c_int * 2) for name in ("tile", "tiles", "before", "after")),
        *((name, ctypes.c_int) for name in ("depth_before", "depth_scope", "pairs", "group")),
        ("axes", _Axis * 2),
        *(  # strides
            (name[:3] + axis, ctypes.c_ssize_t)
            for name in ("qs_bhnk", "vs_bunv", "cs_bk", "os_bhnv", "gs_bhnv", "dq_bhnk", "dv_bunv")
            for axis in name[3:]
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("queries", "values", "content", "cross", "table", "spectrum", "output", "grad_output"),
                *("grad_queries", "grad_values", "grad_spectra", "grad_content", "grad_table"),
            )
        ),
    )


class Library:
    """A compiled library. lanes: value channels in a vector of each kernel."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._library = ctypes.CDLL(str(path))
        self._library.lambdanets_scratch_bytes.restype = ctypes.c_size_t
        self._library.lambdanets_problem_bytes.restype = ctypes.c_size_t
        if self._library.lambdanets_problem_bytes() != ctypes.sizeof(_Problem):
            raise OSError(f"{path} is of another version; install lambdanets again")
        self.lanes = tuple(self._library.lambdanets_lanes(kernel) for kernel in (WIDE, NARROW, FLOAT64))
        self._parallel = _openmp_functions()

    def scratch_bytes(self, problem: _Problem, kernel: int) -> int:
        return int(self._library.lambdanets_scratch_bytes(ctypes.byref(problem), kernel))

    def run(self, problem: _Problem, kernel: int) -> None:
        """Compute the output, or the gradients if `grad_output` is set. Raises OutOfMemoryError."""
        threads = torch.get_num_threads()
        if threads > 1:
            _prepare_for_forks()
        if self._library.lambdanets_run(ctypes.byref(problem), kernel, threads, *self._parallel):
            scratch = self.scratch_bytes(problem, kernel)
            raise torch.OutOfMemoryError(
                f"the position interaction needs {scratch / 2**20:.0f} MiB for each of the tasks that run at once; "
                "use fewer threads"
            )

    def transform_tables(self, problem: _Problem, is_float: bool) -> None:
        """Compute `spectrum` of `table`, or `grad_table` of `grad_spectra`. Raises OutOfMemoryError."""
        if self._library.lambdanets_transform_tables(ctypes.byref(problem), int(is_float)):
            raise torch.OutOfMemoryError("the transform of a table of relative embeddings needs more memory")


@lru_cache(maxsize=1)
def load_library() -> Library | None:
    """The widest library that this processor runs; None if there is none, or if none can be loaded."""
    capability = torch.backends.cpu.get_cpu_capability()
    libraries = itertools.dropwhile(lambda library: not capability.startswith(library[0]), _LIBRARIES)
    files = (FOLDER.glob(f"{name}.*") for _, name in libraries)
    for path in itertools.chain.from_iterable(files):
        try:
            return Library(path)
        except (OSError, AttributeError) as error:  # AttributeError: of a version without one of the functions
            warnings.warn(f"{path.name} is not used, so computing is slower: {error}", KernelWarning, stacklevel=2)
    return None


def _openmp_functions() -> tuple[ctypes.c_void_p | None, ctypes.c_void_p | None]:
    """GOMP_parallel and omp_get_num_threads of the runtime that PyTorch is linked with, to share its threads."""
    path = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
    try:  # symbols are also looked up in the libraries that a library is linked with
        runtime = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        functions = (runtime.GOMP_parallel, runtime.omp_get_num_threads)
    except (OSError, AttributeError):
        return None, None
    return ctypes.cast(functions[0], ctypes.c_void_p), ctypes.cast(functions[1], ctypes.c_void_p)


@lru_cache(maxsize=1)
def _prepare_for_forks() -> None:
    """A child would wait forever for OpenMP's threads, here and in PyTorch: only the parent has them."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


class Native(Algorithm):
    """The compiled kernel for a problem.

    Errors of a transform are relative to its largest sum, and the first of the causal sums have the fewest terms. So
    the first quarter of the positions is computed again as a problem of its own, `first`, which has one of its own: a
    third more work. The same problems give the gradients of the last values, which are in the fewest sums.

    full: the grid with three axes, depth, rows and columns, without others of one position. A sequence is transformed
    as a map of two axes.
    """

    name = "native"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        library = load_library()
        assert library is not None
        p, self._library = problem, library
        self.note = f"library {library.name}"
        self.num_positions, self.scope = p.num_positions, p.scope
        kept = [axis for axis, side in enumerate(p.grid) if side > 1]
        self.is_sequence = len(kept) < 2
        self.full, self.before, self.after = (
            ((missing,) * 3 + tuple([sizes[axis] for axis in kept]))[-3:]
            for missing, sizes in ((1, p.grid), (0, p.before), (0, p.after))
        )
        axes = slice(2 if self.is_sequence else 1, 3)
        self.transforms: Transforms = choose_transforms(self.full[axes], self.before[axes], self.after[axes])
        self.num_tiles = math.prod(-(-s // tile) for s, tile in zip(self.full[1:], self.transforms.tile, strict=True))
        points = math.prod(axis.n for axis in self.transforms.axes)
        wide, narrow, _ = library.lanes
        self._kernel = NARROW if 0 < p.value_depth % wide <= narrow and points < 65_536 else WIDE
        self._kernel = FLOAT64 if self.dtype == torch.float64 else self._kernel
        self.lanes = library.lanes[self._kernel]
        self._description, self._twiddles = self._describe(self.dtype == torch.float64)
        # of the transforms of tables, which are in float64
        self._table_description, self._table_twiddles = self._describe(double=True)
        first = _first_positions(p) if p.causal else None
        self.first = None if first is None else Native(first)

    @classmethod
    def unsupported(cls, problem: Problem) -> str:
        if problem.device not in ("cpu", "meta"):
            return "is for CPUs"
        if load_library() is None:
            return "has no compiled library for this processor (see docs/engine.md)"
        try:
            cls(problem)
        except ValueError as error:
            return str(error)
        return ""

    def cost(self) -> Cost:
        p = self.problem
        n1, n2 = (axis.n for axis in self.transforms.axes)
        terms = p.intra_depth * (self.before[0] + 1 + self.after[0])  # products for a lambda
        per_tile = self.transforms.instructions + 6 * (terms - 1) * n1 * n2
        per_pair = self.full[0] * self.num_tiles * per_tile + 4 * p.num_positions * p.heads
        blocks = p.batch * -(-p.value_depth // self.lanes) * -(-p.query_depth // 2)
        multiply_adds = self.lanes * blocks * per_pair
        work = _WORK * multiply_adds + 4 * CALL
        c = _Problem.from_buffer_copy(self._description)
        c.grad_output = 1  # only tested: the backward pass needs more memory
        return Cost(multiply_adds, self._library.scratch_bytes(c, self._kernel), work)

    def prepare(self, table: Tensor) -> Prepared:
        """The spectra (depth offset, u, pair, f2, f1) of R_k + i R_{k+1}, and those of `first`."""
        c = _Problem.from_buffer_copy(self._table_description)
        n1, n2 = (axis.n for axis in self.transforms.axes)
        dtype = torch.complex128 if self.dtype == torch.float64 else torch.complex64
        spectra = table.new_empty(c.depth_scope, c.u, c.pairs, n2, n1, dtype=dtype)
        table = table.contiguous()
        c.table, c.spectrum = table.data_ptr(), spectra.data_ptr()
        if c.spectrum:  # meta tensors have no memory
            self._library.transform_tables(c, is_float=self.dtype == torch.float32)
        if self.first is None:
            return (spectra,)
        p, first = self.problem, self.first.problem
        sizes = zip(p.before, first.before, first.after, strict=True)
        offsets = tuple([slice(center - before, center + 1 + after) for center, before, after in sizes])
        return (spectra, *self.first.prepare(table[offsets]))

    def grad_table(self, grad_prepared: Prepared) -> Tensor:
        c, grad_spectra = _Problem.from_buffer_copy(self._table_description), grad_prepared[0]
        grad_table = grad_spectra.new_empty(*self.scope, c.k, c.u, dtype=self.dtype)
        c.grad_spectra, c.grad_table = grad_spectra.data_ptr(), grad_table.data_ptr()
        if c.grad_table:
            self._library.transform_tables(c, is_float=self.dtype == torch.float32)
        return grad_table

    def _describe(self, double: bool) -> tuple[_Problem, list[Any]]:
        """The struct of the kernel without tensors, and the arrays that it points to: twiddles, maybe in float64."""
        p, (tile, axes, lines) = self.problem, self.transforms
        c = _Problem(b=p.batch, h=p.heads, k=p.query_depth, v=p.value_depth, u=p.intra_depth)
        c.depth, c.H, c.W = self.full
        c.os_v = int(not p.channels_first)
        c.sequence, c.pairs = int(self.is_sequence), -(-p.query_depth // 2)
        for d in range(2):
            c.tile[d], c.before[d], c.after[d] = tile[d], self.before[1 + d], self.after[1 + d]
            c.tiles[d] = -(-self.full[1 + d] // tile[d])
        c.depth_before, c.depth_scope = self.before[0], self.before[0] + 1 + self.after[0]
        keep: list[Any] = []
        for axis, chosen in zip(c.axes, axes, strict=True):
            n, axis.n, axis.levels, axis.streamed = chosen.n, chosen.n, len(chosen.factors), 2**62
            axis.f[: axis.levels] = chosen.factors
            for level, factor in enumerate(chosen.factors[:-1]):
                keep.append(twiddles(n, factor, double))
                axis.twiddles[level] = keep[-1].ctypes.data
                n //= factor
        n1, n2 = (axis.n for axis in axes)
        if self.is_sequence:
            keep.append(twiddles(n1 * n2, n2, double))
            c.cross = keep[-1].ctypes.data
        # Maps of a group fill half of the second-level cache. Two pairs share loads and stores of outputs.
        bytes_per_pair = lines * n2 * 2 * self.lanes * self.dtype.itemsize
        group = max(4 if bytes_per_pair > 8 * _L2_BYTES else 2, _L2_BYTES // 2 // bytes_per_pair // 2 * 2)
        if group * bytes_per_pair > _MAX_SCRATCH_BYTES:
            group = 2
        c.group = min(c.pairs, group)
        if c.group * bytes_per_pair > _STREAMED_BYTES:
            c.axes[0].streamed = 2 * (c.group * n2 + 1)  # the stride of a map's rows
        return c, keep

    def _call(self, queries: Tensor, prepared: Prepared, values: Tensor, content: Tensor | None) -> _Problem:
        c = _Problem.from_buffer_copy(self._description)
        c.b = queries.shape[0]
        c.qs_b, c.qs_h, c.qs_n, c.qs_k = queries.stride()
        c.vs_b, c.vs_n, c.vs_v, c.vs_u = values.stride()
        c.queries, c.values, c.spectrum = queries.data_ptr(), values.data_ptr(), prepared[0].data_ptr()
        if content is not None:
            c.cs_b, c.cs_k, _ = content.stride()
            c.content = content.data_ptr()
        return c

    def _new_rows(self, like: Tensor, batch: int, heads: int, channels: int, are_maps: bool) -> Tensor:
        """An empty (b, h, n, c), in memory as maps (b, h, c, n) or as rows (b, n, h, c)."""
        n = self.num_positions
        strides = (channels * n, 1, n) if are_maps else (channels, heads * channels, 1)
        return like.new_empty_strided((batch, heads, n, channels), (heads * n * channels, *strides), dtype=self.dtype)

    def derive(self, grad_output: Tensor | None, inputs: Inputs, needs: Needs) -> Derivatives:
        queries, prepared, values, content = inputs
        content = content if content is None or content.stride(2) == 1 else content.contiguous()
        c = self._call(queries, prepared, values, content)
        output = grad_queries = grad_spectra = grad_values = grad_content = None
        if needs.output:
            output = self._new_rows(queries, c.b, c.h, c.v, self.problem.channels_first)
            c.output = output.data_ptr()
            c.os_b, c.os_h, c.os_n, c.os_v = output.stride()
            if c.output:  # meta tensors have no memory
                self._library.run(c, self._kernel)
        if needs.queries:
            grad_queries = self._new_rows(queries, c.b, c.h, c.k, _is_transposed(queries))
            c.grad_queries = grad_queries.data_ptr()
            c.dq_b, c.dq_h, c.dq_n, c.dq_k = grad_queries.stride()
        if needs.values:
            grad_values = self._new_rows(queries, c.b, c.u, c.v, _is_transposed(values[..., 0])).movedim(1, 3)
            # Tiles add to the values around them; a single one writes each value once.
            grad_values = grad_values.zero_() if self.num_tiles > 1 else grad_values
            c.grad_values = grad_values.data_ptr()
            c.dv_b, c.dv_n, c.dv_v, c.dv_u = grad_values.stride()
        if needs.table:
            grad_spectra = torch.empty_like(prepared[0])
            c.grad_spectra = grad_spectra.data_ptr()
        if needs.content:
            grad_content = queries.new_empty(c.b, c.k, c.v)
            c.grad_content = grad_content.data_ptr()
        if grad_output is not None:
            c.grad_output = grad_output.data_ptr()
            c.gs_b, c.gs_h, c.gs_n, c.gs_v = grad_output.stride()
            if c.grad_output:
                self._library.run(c, self._kernel)
        if self.first is not None:
            n, derive = self.first.num_positions, cast(Any, self.first.derive)
            first = queries[:, :, :n], prepared[1:], values[:, :n], content
            last = queries[:, :, -n:], prepared[1:], values[:, -n:], None
            if output is not None:
                output[:, :, :n] = derive(None, first, Needs(output=True))[0]
            if grad_output is not None and grad_queries is not None:
                grad_queries[:, :, :n] = derive(grad_output[:, :, :n], first, Needs(queries=True))[1]
            if grad_output is not None and grad_values is not None:
                grad_values[:, -n:] = derive(grad_output[:, :, -n:], last, Needs(values=True))[3]
        return output, grad_queries, None if grad_spectra is None else (grad_spectra,), grad_values, grad_content


def _first_positions(p: Problem) -> Problem | None:
    """The first quarter of the positions of a causal problem; None if there are few, or all have as many terms."""
    terms = [min(side, before + 1) for side, before in zip(p.grid, p.before, strict=True)]  # later ones have no more
    axis = next((axis for axis, count in enumerate(terms) if count > 1), 0)
    if terms[axis] == 1 or p.num_positions <= _MIN_POSITIONS:
        return None
    grid = (*(1,) * axis, max(1, terms[axis] // _SHRINK), *p.grid[axis + 1 :])
    before, after = (tuple(map(min, reach, [side - 1 for side in grid])) for reach in (p.before, p.after))
    return p._replace(grid=grid, before=before, after=after)


def _is_transposed(x: Tensor) -> bool:
    """Whether the last two axes are swapped in memory, as in rows (.., n, c) that are maps."""
    return x.stride(-2) == 1 and x.stride(-1) != 1
