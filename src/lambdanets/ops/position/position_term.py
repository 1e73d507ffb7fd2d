"""The position term of layers and of `position_interaction`, from checked tensors to an algorithm and back.

In this order: `compute_position_term` undoes the dilation, `make_plan` chooses an algorithm; `derive` calls the
autograd function; `compute` crops and prepares the table and splits the batch. The factors are
queries q (b, h, n, k), a table R (r_1..r_D, k, u), values V (b, n, v, u) and a content lambda L (b, k, v) or None.

The output y = T(q, R, V) + q L is linear in each of them. With g its gradient, <g, y> is linear in all five; y and the
gradients of the factors are its derivatives. Hence one autograd function for both.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from lambdanets.errors import InputError
from lambdanets.ops.position.algorithm import Algorithm, Derivatives, Needs, Prepared, Problem
from lambdanets.ops.position.choose import Plan, choose
from lambdanets.ops.position.dilation import redilate, undilate
from lambdanets.ops.position.exported import interact_in_graph
from lambdanets.ops.precision import accumulation_dtype, without_autocast
from lambdanets.ops.tables import crop_to_grid, mask_future
from lambdanets.ops.tracing import is_exporting

_OUTPUT = (True, False, False, False, False)  # of the derivatives of <g, y>
_TABLE, _CONTENT = 2, 4  # indices in g, q, R, V, L

CACHE_BYTES = 256 << 20  # limit on the total size of cached tables


def compute_position_term(
    queries: Tensor,
    table: Tensor,
    values: Tensor,
    content: Tensor | None,
    grid: tuple[int, ...],
    dilation: int = 1,
    causal: bool = False,
    algorithm: str = "auto",
    channels_first: bool = False,
) -> Tensor:
    """Return `position_interaction` (b, h, n, v) of checked tensors, of which values may lack the axis u.

    The result has the dtype of the queries, or float32 for float16. Autocast must be off.
    channels_first: whether the next layer needs the output as maps (b, h v, n) in memory. Algorithms
    may ignore it.
    """
    if values.ndim == 3:
        table, values = table.unsqueeze(-1), values.unsqueeze(-1)
    if dilation > 1:
        queries, values, content, phase_grid = undilate(queries, values, content, grid, dilation)
        output = compute_position_term(queries, table, values, content, phase_grid, 1, causal, algorithm)
        return redilate(output, grid, dilation)
    factors, is_compiling = (queries, table, values, content), torch.compiler.is_compiling()
    if torch.jit.is_tracing() or (is_compiling and is_exporting()):
        return interact_in_graph(*factors, grid, causal)
    if is_compiling or (
        torch._C._len_torch_dispatch_stack() and any(isinstance(side, torch.SymInt) for side in queries.shape)
    ):
        return derive_by_operator((None, *factors), (grid, causal, algorithm), _OUTPUT)[0]
    plan = make_plan(factors, grid, causal, algorithm, channels_first)
    return derive((None, *factors), plan, _OUTPUT)[0]


def make_plan(
    factors: Sequence[Any], grid: tuple[int, ...], causal: bool, algorithm: str, channels_first: bool = False
) -> Plan:
    """Return the plan of an interaction without dilation. The table need not be cropped.

    Raises ValueError for inconsistent shapes or devices, with which a compiled kernel would read out of bounds: a
    constructor has checked the sizes of a layer, but its modules may have been replaced.
    """
    queries, table, values, content = factors
    batch, heads, n, depth = queries.shape
    value_depth, intra_depth = values.shape[2:]
    if (
        not 0 < n == math.prod(grid)
        or values.shape[:2] != (batch, n)
        or table.shape[len(grid) :] != (depth, intra_depth)
        or math.prod(table.shape[: len(grid)]) % 2 == 0
        or not queries.device == table.device == values.device
        or (content is not None and content.shape != (batch, depth, value_depth))
    ):
        from lambdanets.ops.grid import check_factors

        check_factors(queries, table, values, content, grid)
    device = values.device
    radii = tuple([min(scope // 2, side - 1) for scope, side in zip(table.shape, grid, strict=False)])
    problem = Problem(
        max(1, batch),  # an empty batch is planned as one example
        heads,
        grid,
        depth,
        value_depth,
        intra_depth,
        before=radii,
        after=(0, *radii[1:]) if causal else radii,
        causal=causal,
        dtype=values.dtype,
        device=str(device) if device.type == "cuda" else device.type,
        channels_first=channels_first,
    )
    return choose(problem, algorithm)


def derive(tensors: Sequence[Any], plan: Plan, needs: Sequence[bool]) -> tuple[Any, ...]:
    """Compute the needed derivatives of <g, y> with respect to g, q, R, V and L, themselves differentiable.

    tensors: these five; g is needed for gradients, but not for the output, the derivative with respect to g.
    """
    if torch._C._are_functorch_transforms_active():  # vmap and jvp need another kind of function, which is slower
        transforms = [each.key() for each in torch._C._functorch.get_interpreter_stack() or ()]
        if transforms.count(torch._C._functorch.TransformType.Jvp) > 1:
            # within the jvp of any autograd.Function, PyTorch computes no tangents of plain operations
            raise InputError("the position term must be in at most one jvp, got nested ones; use jvp of vjp (hessian)")
        return TransformableInteraction.apply(*tensors, plan, needs)
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return Interaction.apply(*tensors, plan, needs)
    return run(*tensors, plan, needs)  # the function takes as long as a small kernel


def run(*inputs: Any) -> tuple[Tensor | None, ...]:
    """`derive` without autograd."""
    *tensors, plan, needs = inputs
    if _need_operator(*tensors[1:_CONTENT]):
        return derive_by_operator(tensors, (plan.problem.grid, plan.problem.causal, plan.algorithm), needs)
    return compute(tensors, plan, needs)


def derive_by_operator(tensors: Sequence[Any], options: Sequence[Any], needs: Sequence[bool]) -> tuple[Any, ...]:
    """`run` by the operator of torch_compile.py; options: grid, causal and algorithm."""
    results = iter(torch.ops.lambdanets.position_interaction(*tensors, *options, list(needs)))
    return tuple([next(results) if needed else None for needed in needs])


class Interaction(torch.autograd.Function):
    """`derive` in eager mode."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor | None, ...]:
        Interaction.save(ctx, inputs)
        return run(*inputs)

    @staticmethod
    def save(ctx: Any, inputs: tuple[Any, ...], output: Any = None) -> None:
        *tensors, ctx.plan, ctx.needs = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Any, ...]:
        return *derive_along(directions, ctx.saved_tensors, ctx.plan, ctx.needs_input_grad[:5]), None, None

    @staticmethod
    def jvp(ctx: Any, *directions: Any) -> tuple[Tensor | None, ...]:
        tensors, needs = ctx.saved_tensors, ctx.needs
        outputs = zip(derive_along(directions[:5], tensors, ctx.plan, needs), tensors, needs, strict=True)
        return tuple(torch.zeros_like(x) if needed and product is None else product for product, x, needed in outputs)


class TransformableInteraction(Interaction):
    """`derive` under the transforms of torch.func."""

    forward: Any = staticmethod(run)
    setup_context = staticmethod(Interaction.save)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[Any, Any]:
        *tensors, plan, needs = inputs
        results = []
        for i in range(info.batch_size):
            pairs = zip(tensors, in_dims, strict=False)
            example = [x if x is None or dim is None else x.select(dim, i) for x, dim in pairs]
            results.append(derive(example, plan, needs))
        stacked = tuple(None if x[0] is None else torch.stack(x) for x in zip(*results, strict=True))
        return stacked, tuple(None if x is None else 0 for x in stacked)


def derive_along(
    directions: Sequence[Tensor | None], tensors: Sequence[Any], plan: Plan, needs: Sequence[bool]
) -> list[Tensor | None]:
    """Double backward: needed derivatives of the derivative of <g, y> along directions of g, q, R, V and L; None if 0.

    Along (a, B, C, D) of the factors it has the form of <g, y>, <g, T(a, R, V) + a L + T(q, B, V) + T(q, R, C) + q D>,
    so derivatives of any order need only `derive` and products with content lambdas. README.md has a table of the
    terms.
    """
    total: list[Tensor | None] = [None] * 5
    for index, direction in enumerate(directions):
        if direction is None:
            continue
        needed = [need and i != index for i, need in enumerate(needs)]
        if any(needed):
            terms = _terms_with(index, (*tensors[:index], direction, *tensors[index + 1 :]), plan, needed)
            pairs = zip(total, terms, strict=True)
            total = [term if x is None else x if term is None else x + term for x, term in pairs]
    return total


def _terms_with(index: int, tensors: Sequence[Any], plan: Plan, needs: Sequence[bool]) -> tuple[Any, ...]:
    """The needed derivatives of the terms of <g, y> that have the tensor with this index."""
    grad_output, queries, table, values, content = tensors
    with without_autocast(queries.device):
        if index == _CONTENT:  # not the term of table and values
            output = queries.to(content.dtype) @ content.unsqueeze(1) if needs[0] else None
            grad_queries = grad_output.to(content.dtype) @ content.mT.unsqueeze(1) if needs[1] else None
            return output, grad_queries, None, None, None
        if index >= _TABLE:  # not the term of the content lambda
            content, needs = None, (*needs[:_CONTENT], False)
        return derive((grad_output, queries, table, values, content), plan, needs)


def _need_operator(queries: Tensor, table: Tensor, values: Tensor) -> bool:
    """Whether a mode such as make_fx sees only operators, or a subclass such as DTensor has no memory."""
    if torch._C._len_torch_dispatch_stack():
        return True
    if type(queries) is type(values) is Tensor and type(table) in (Tensor, torch.nn.Parameter):
        return False
    return any(torch._C._dispatch_keys(x).has(torch._C.DispatchKey.Python) for x in (queries, table, values))


def compute(tensors: Sequence[Any], plan: Plan, needs: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """`run` by the plan's algorithm; autocast must be off. No result is a view, as autograd would not let it change."""
    grad_output, queries, table, values, content = tensors
    algorithm, (batch, heads, n, _) = plan.implementation, queries.shape
    if batch == 0:
        output = queries.new_zeros(0, heads, n, values.shape[2], dtype=algorithm.result_dtype)
        empty = zip((output, *tensors[1:]), needs, strict=True)
        return tuple([torch.zeros_like(x) if needed else None for x, needed in empty])
    prepared = prepare_table(table, algorithm)
    dtype, factors = algorithm.dtype, (grad_output if any(needs[1:]) else None, queries, values, content)
    # Kernels read memory, where an imaginary part of a conjugate has the opposite sign. Even calls without effect take
    # time, which counts for small maps.
    parts: Any = [
        x if x is None or (x.dtype == dtype and not x.is_neg()) else x.to(dtype).resolve_neg() for x in factors
    ]
    if batch <= algorithm.batch:
        g, q, v, c = parts
        derivatives = algorithm.derive(g, (q, prepared, v, c), Needs(*needs))
    else:
        derivatives = _derive_in_parts(parts, prepared, algorithm, Needs(*needs))
    output, grad_queries, grad_prepared, grad_values, grad_content = derivatives
    grad_table = None
    if grad_prepared is not None:
        grad_table = _restore_offsets(algorithm.grad_table(grad_prepared), plan.problem, table.shape)
    owned = [output, grad_queries, grad_table, grad_values, grad_content]
    for i, x in enumerate(owned):
        if x is not None:
            result_dtype = tensors[i].dtype if i else algorithm.result_dtype
            owned[i] = (x if x.dtype == result_dtype else x.to(result_dtype)).detach()
    return tuple(owned)


def _derive_in_parts(factors: Sequence[Any], prepared: Prepared, algorithm: Algorithm, needs: Needs) -> Derivatives:
    """`Algorithm.derive` for a batch of any size; factors: g, q, v and c."""
    splits = [itertools.repeat(None) if x is None else x.split(algorithm.batch) for x in factors]
    results, total = [], None
    for g, q, v, c in zip(*splits, strict=False):
        output, grad_queries, grad_prepared, *others = algorithm.derive(g, (q, prepared, v, c), needs)
        results.append((output, grad_queries, *others))
        if total is None or grad_prepared is None:
            total = grad_prepared
        else:  # a sum of several calls in bfloat16 would lose precision
            sums = zip(total, grad_prepared, strict=True)
            total = tuple([x.to(accumulation_dtype(x.dtype)).add_(part) for x, part in sums])
    output, grad_queries, *rest = (x[0] if x[0] is None else torch.cat(x) for x in zip(*results, strict=True))
    return output, grad_queries, total, rest[0], rest[1]


def _crop(table: Tensor, problem: Problem) -> Tensor:
    """Remove offsets beyond the grid; for causal problems, set those after 0 to zero and remove their rows."""
    table = crop_to_grid(table, problem.grid)
    if not problem.causal:
        return table
    return mask_future(table, len(problem.grid)).narrow(0, 0, problem.before[0] + 1)


def _restore_offsets(grad_table: Tensor, problem: Problem, shape: torch.Size) -> Tensor:
    """The adjoint of `_crop` for a table of this shape."""
    if grad_table.shape != shape:
        whole = grad_table.new_zeros(shape)
        crop_to_grid(whole, problem.grid).narrow(0, 0, len(grad_table)).copy_(grad_table)
        grad_table = whole
    return mask_future(grad_table, len(problem.grid)) if problem.causal else grad_table


prepared_tables: dict[tuple[int, Algorithm], tuple[Tensor, Prepared, int]] = {}  # of `prepare_table`, the oldest first


def prepare_table(table: Tensor, algorithm: Algorithm) -> Prepared:
    """`Algorithm.prepare` of a table, which is cached for tables on CPU, for inference and for backward passes.

    An entry contains a copy of its table and is used only for equal tables, so it cannot become stale when a parameter
    changes. The comparison takes about 1% of the time of `prepare`. Entries are immutable and shared by threads, which
    need no lock, because each operation on the dictionary is atomic.
    """
    table = table.resolve_neg() if table.is_neg() else table
    is_cached = table.device.type == "cpu" and type(table) in (Tensor, torch.nn.Parameter)
    if is_cached:
        key = (table.data_ptr(), algorithm)
        entry = prepared_tables.get(key)
        if entry is not None and torch.equal(entry[0], table):
            return entry[1]
        # Prepare from the copy, because another thread may change the table, and `prepare` may return a view.
        table = table.detach().clone()
    prepared = algorithm.prepare(_crop(table, algorithm.problem).to(algorithm.dtype))
    size = table.nbytes + sum(x.nbytes for x in prepared)
    if is_cached and size <= CACHE_BYTES // 4:
        prepared_tables.pop(key, None)
        prepared_tables[key] = table, prepared, size
        while sum(entry[2] for entry in list(prepared_tables.values())) > CACHE_BYTES:
            prepared_tables.pop(next(iter(list(prepared_tables)), key), None)
    return prepared
