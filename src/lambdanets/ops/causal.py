"""Causal content term (Sec. C.2): one content lambda per query from prefix sums, nearly linear in n.

With softmax keys, the content lambda of query n is S_n / Z_n, where S_n = sum_{m<=n} exp(k_m - M_n) v_m^T and Z_n is
the same sum with v = 1. Subtracting M_n = max_{m<=n} k_m prevents overflow without using future positions. As in
chunked linear attention, each chunk is summed directly, and all earlier chunks are represented by one (k, v) state.
position/README.md derives the recurrence.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.precision import accumulation_dtype, sqrt_or_one
from lambdanets.ops.tables import pad_axis
from lambdanets.ops.tracing import is_exporting

CHUNK = 16  # positions
GROUP = 32  # chunks
_LOWEST = torch.finfo(torch.float32).min  # running maximum of keys before the first
_MAX_EXPORTED_CHUNKS = 1 << 16  # in exported graphs with dynamic length: 1,048,576 positions


def causal_content(queries: Tensor, keys: Tensor, values: Tensor, normalize_keys: str | None) -> Tensor:
    """y[b,h,n,:] = (sum_{m<=n} kbar[b,n,m] v[b,m]^T)^T q[b,h,n], keys normalized over m <= n.

    queries (b, h, n, k), keys (b, n, k, u) and values (b, n, v, u) have the same dtype. Computes in float32 or wider
    and returns (b, h, n, v) in the dtype of queries.
    Cost: about b n u (k v (h + 3) + h (k + v) c) multiply-adds with chunks of c = 16 positions. For normalized keys the
    largest tensor has b n c k u elements. The only quadratic cost is (n / 512)^2, over groups of 512 positions.
    """
    num_positions, intra_depth = queries.shape[2], keys.shape[3]
    dtype = queries.dtype
    queries, keys, values = (x.to(accumulation_dtype(dtype)) for x in (queries, keys, values))
    # u is a batch axis, since keys are normalized for each (k, u)
    queries = queries.unsqueeze(1).expand(-1, intra_depth, -1, -1, -1)  # (b, u, h, n, k)
    keys, values = keys.permute(0, 3, 1, 2), values.permute(0, 3, 1, 2)  # (b, u, n, ..)
    queries = _split_into_chunks(queries, 3, CHUNK)  # (b, u, h, c, t, k)
    values = _split_into_chunks(values, 2, CHUNK)  # (b, u, c, t, v)
    keys = _split_into_chunks(keys, 2, CHUNK, -torch.inf if normalize_keys == "softmax" else 0)  # (b, u, c, t, k)
    output = {"softmax": _softmax, "l2": _l2, None: _unnormalized}[normalize_keys](queries, keys, values)
    output = output.sum(dim=1).flatten(2, 3)  # (b, h, n, v)
    return output.narrow(2, 0, num_positions).to(dtype)


def _unnormalized(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Sum of k v^T over all earlier chunks, plus the causal part of q k^T within the chunk."""
    chunk_sums = keys.transpose(-1, -2) @ values  # (b, u, c, k, v)
    states = F.pad(chunk_sums.cumsum(dim=2), (0, 0, 0, 0, 1, 0)).narrow(2, 0, chunk_sums.shape[2])
    logits = (queries @ keys.transpose(-1, -2).unsqueeze(2)).tril()  # (b, u, h, c, t, s)
    return queries @ states.unsqueeze(2) + logits @ values.unsqueeze(2)


def _softmax(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    # max_{m<=n} k_m, finite even where all k are -inf, and detached, because S_n / Z_n does not depend on it
    if is_exporting() or torch.jit.is_tracing():
        maxima = _exportable_running_maximum(keys)
    else:
        maxima = keys.detach().flatten(2, 3).cummax(dim=2).values.clamp(min=_LOWEST).unflatten(2, keys.shape[2:4])
    values_and_ones = F.pad(values, (0, 1), value=1.0)  # the last channel, with ones as values, gives Z
    weights, decay, states = _scan(keys, maxima, values_and_ones, _Exponential)
    normalizer = decay * states[..., -1].unsqueeze(3) + weights.sum(dim=4)  # Z
    queries = queries / torch.where(normalizer > 0, normalizer, 1).unsqueeze(2)
    return _apply(queries, values, weights, decay, states[..., :-1])


def _l2(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    # Do not normalize the queries instead: gradients lose precision if the context is a single small key.
    roots = sqrt_or_one(keys.flatten(2, 3).square().cumsum(dim=2)).unflatten(2, keys.shape[2:4])
    return _apply(queries, values, *_scan(keys, roots, values, _Ratio))


class _Exponential:
    """exp(k - reference), where reference is the running maximum."""

    masked_key = -torch.inf  # scaled to 0
    initial_reference = _LOWEST  # before the first position
    padding_reference = -_LOWEST  # of padded chunks, finite so that scaling to it gives exp(-inf) = 0, never inf - inf

    @staticmethod
    def scale(x: Tensor, reference: Tensor) -> Tensor:
        return (x - reference).exp()


class _Ratio:
    """k / reference, where reference is the square root of the running sum of squares."""

    masked_key = 0.0
    initial_reference = padding_reference = 1.0

    @staticmethod
    def scale(x: Tensor, reference: Tensor) -> Tensor:
        return x / reference


_Scaling = type[_Exponential] | type[_Ratio]


def _scan(keys: Tensor, references: Tensor, values: Tensor, scaling: _Scaling) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, decay and states, which define the lambda of each query t in each chunk c.

    lambda[c,t] = decay[c,t] states[c] + sum_{s<=t} weights[c,t,s] v[c,s]^T

    keys and references: (b, u, c, t, k). values: (b, u, c, t, w).
    weights (b, u, c, t, s, k): keys of the chunk scaled to the reference of query t, 0 for s > t.
    decay (b, u, c, t, k): factor from the last reference of the previous chunk to the reference of query t.
    states (b, u, c, k, w): sums over all earlier chunks, scaled to the last reference of the previous chunk.
    """
    ends = references[:, :, :, -1]  # (b, u, c, k)
    starts = F.pad(ends, (0, 0, 1, 0), value=scaling.initial_reference).narrow(2, 0, ends.shape[2])
    chunk_sums = scaling.scale(keys, ends.unsqueeze(3)).transpose(-1, -2) @ values
    states = _chunk_states(chunk_sums, ends, starts, scaling)
    decay = scaling.scale(starts.unsqueeze(3), references)
    future = _future_mask(CHUNK, keys.device, 1).unsqueeze(-1)
    weights = scaling.scale(keys.unsqueeze(3).masked_fill(future, scaling.masked_key), references.unsqueeze(4))
    return weights, decay, states


def _apply(queries: Tensor, values: Tensor, weights: Tensor, decay: Tensor, states: Tensor) -> Tensor:
    """Apply the lambdas of `_scan` to queries (b, u, h, c, t, k) and return (b, u, h, c, t, v)."""
    logits = (weights @ queries.movedim(2, 5)).movedim(5, 2)  # (b, u, h, c, t, s)
    return (queries * decay.unsqueeze(2)) @ states.unsqueeze(2) + logits @ values.unsqueeze(2)


def _exportable_running_maximum(keys: Tensor) -> Tensor:
    """The running maximum of chunked keys (b, u, c, t, k) without cummax, which ONNX does not support."""
    within_chunk = _scan_maximum(keys.detach(), 3, CHUNK)
    max_chunks = keys.shape[2] if isinstance(keys.shape[2], int) else _MAX_EXPORTED_CHUNKS
    until_chunk = _scan_maximum(within_chunk[:, :, :, -1], 2, max_chunks)
    before_chunk = F.pad(until_chunk, (0, 0, 1, 0), value=-torch.inf).narrow(2, 0, keys.shape[2])
    return torch.maximum(within_chunk, before_chunk.unsqueeze(3)).clamp(min=_LOWEST)


def _scan_maximum(x: Tensor, dim: int, length: int) -> Tensor:
    """Return the running maximum along an axis of at most `length` elements, by a scan in log2(length) steps."""
    for step in range((length - 1).bit_length()):
        earlier = pad_axis(x, dim, 1 << step, 0, -torch.inf).narrow(dim, 0, x.shape[dim])
        x = torch.maximum(x, earlier)
    return x


def _chunk_states(chunk_sums: Tensor, ends: Tensor, starts: Tensor, scaling: _Scaling) -> Tensor:
    """Return states[c] = sum_{c'<c} chunk_sums[c'] (b, u, c, k, w), scaled from ends[c'] to starts[c] = ends[c-1].

    The scan has two levels to keep direct sums short: a million positions give 2048 groups of 32 chunks. The state of
    chunk c in group g is the sum over earlier chunks of g, plus the state of g scaled from starts[g] to starts[c].
    """
    num_chunks = ends.shape[2]
    ends, starts = (_split_into_chunks(x, 2, GROUP, scaling.padding_reference) for x in (ends, starts))
    chunk_sums = _split_into_chunks(chunk_sums, 2, GROUP)  # (b, u, g, c, k, w)
    within_group = _sum_earlier(chunk_sums, ends, starts, scaling)
    group_ends, group_starts = ends[:, :, :, -1], starts[:, :, :, 0]
    group_sums = (scaling.scale(ends, group_ends.unsqueeze(3)).unsqueeze(-1) * chunk_sums).sum(dim=3)  # (b, u, g, k, w)
    group_states = _sum_earlier(group_sums, group_ends, group_starts, scaling).unsqueeze(3)
    from_earlier_groups = scaling.scale(group_starts.unsqueeze(3), starts).unsqueeze(-1) * group_states
    return (within_group + from_earlier_groups).flatten(2, 3).narrow(2, 0, num_chunks)


def _sum_earlier(sums: Tensor, ends: Tensor, starts: Tensor, scaling: _Scaling) -> Tensor:
    """Return sum_{s<t} sums[s] (.., t, k, w), each scaled from ends[s] (.., s, k) to starts[t] (.., t, k)."""
    not_earlier = _future_mask(ends.shape[-2], ends.device, 0).unsqueeze(-1)
    earlier = ends.unsqueeze(-3).masked_fill(not_earlier, scaling.masked_key)  # (.., t, s, k)
    return torch.einsum("...tsk,...skw->...tkw", scaling.scale(earlier, starts.unsqueeze(-2)), sums)


def _split_into_chunks(x: Tensor, axis: int, length: int, fill: float = 0.0) -> Tensor:
    """Pad an axis and split it into (num_chunks, length).

    There are always at least two chunks, and the last one always contains padding, because torch.compile specializes on
    sizes 0 and 1.
    """
    size = x.shape[axis]
    num_chunks = size // length + 2
    return pad_axis(x, axis, 0, num_chunks * length - size, fill).unflatten(axis, (num_chunks, length))


def _future_mask(length: int, device: torch.device, diagonal: int) -> Tensor:
    """Boolean mask (t, s), True where s >= t + diagonal."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(diagonal)
