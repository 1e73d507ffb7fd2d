"""Causal content (Sec. C.2): every query's own content lambda from running sums, nearly linear in n.

With softmax keys the content lambda of query n is S_n / Z_n, where S_n = sum_{m<=n} exp(k_m - M_n) v_m^T, Z_n the same
sum with 1 for v, and M_n = max_{m<=n} k_m, so that no exponential overflows and none depends on the future. Positions
are cut into chunks. Inside a chunk the sums are taken directly; what came before it arrives as one (k, v) state, as in
chunked linear attention. position/README.md has the recurrence.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lambdanets.ops.precision import root_or_one, wide

CHUNK = 16  # positions
GROUP = 32  # chunks


def causal_content(
    queries: Tensor, keys: Tensor, values: Tensor, normalize_keys: str | None, mask: Tensor | None
) -> Tensor:
    """y[b,h,n,:] = (sum_{m<=n} kbar[b,n,m] v[b,m]^T)^T q[b,h,n], keys normalized over m <= n.

    queries (b, h, n, k), keys (b, n, k, u), values (b, n, v, u) of one dtype; mask (b, n) or None, True for the context
    positions that count. Computed in float32 or wider; returns (b, h, n, v) in the dtype of queries.
    Cost: about b n u (k v (h + 3) + h (k + v) c) multiply-adds, c = 16 positions a chunk, and for normalized keys
    b n c k u numbers, the largest thing stored; of all pairs of positions only those of 32 chunks each, (n / 512)^2.
    """
    positions, intra = queries.shape[2], keys.shape[3]
    dtype = queries.dtype
    if mask is not None:
        values = values.masked_fill(~mask[..., None, None], 0)
        keys = keys.masked_fill(~mask[..., None, None], -torch.inf if normalize_keys == "softmax" else 0)
    queries, keys, values = (x.to(wide(dtype)) for x in (queries, keys, values))
    # u rides in the batch, since keys are normalized for each (k, u); chunks stand beside it
    queries = queries.unsqueeze(1).expand(-1, intra, -1, -1, -1)  # (b, u, h, n, k)
    keys, values = keys.permute(0, 3, 1, 2), values.permute(0, 3, 1, 2)  # (b, u, n, ..)
    queries, values = _in_parts(queries, 3, CHUNK), _in_parts(values, 2, CHUNK)  # (b, u, h, c, t, k), (b, u, c, t, v)
    keys = _in_parts(keys, 2, CHUNK, -torch.inf if normalize_keys == "softmax" else 0)  # (b, u, c, t, k)
    output = {"softmax": _softmax, "l2": _l2, None: _as_given}[normalize_keys](queries, keys, values)
    output = output.sum(dim=1).flatten(2, 3)  # (b, h, n, v)
    return output.narrow(2, 0, positions).to(dtype)


def _as_given(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Keys as they are: the running sum of k v^T before a chunk, and the causal part of q k^T inside it."""
    chunk_sums = keys.transpose(-1, -2) @ values  # (b, u, c, k, v)
    states = F.pad(chunk_sums.cumsum(dim=2), (0, 0, 0, 0, 1, 0)).narrow(2, 0, chunk_sums.shape[2])
    logits = (queries @ keys.transpose(-1, -2).unsqueeze(2)).tril()  # (b, u, h, c, t, s)
    return queries @ states.unsqueeze(2) + logits @ values.unsqueeze(2)


def _softmax(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    maxima = running_maximum(keys.flatten(2, 3), dim=2).unflatten(2, keys.shape[2:4])
    values_and_one = F.pad(values, (0, 1), value=1.0)  # the sum of the weights is the lambda of a value that is 1
    weights, decay, states = _scan(keys, maxima, values_and_one, _Exponential)
    normalizer = decay * states[..., -1].unsqueeze(3) + weights.sum(dim=4)  # Z
    queries = queries / torch.where(normalizer > 0, normalizer, 1).unsqueeze(2)
    return _apply(queries, values, weights, decay, states[..., :-1])


def _l2(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    # Divided key by key: dividing the query instead would lose digits in the gradient of a context of one small key.
    roots = root_or_one(keys.flatten(2, 3).square().cumsum(dim=2)).unflatten(2, keys.shape[2:4])
    return _apply(queries, values, *_scan(keys, roots, values, _Ratio))


class _Exponential:
    """exp(k - reference), the reference a running maximum."""

    masked_key = -torch.inf  # is scaled to 0

    @staticmethod
    def first(dtype: torch.dtype) -> float:
        """The reference before any position."""
        return torch.finfo(dtype).min

    @staticmethod
    def padding(dtype: torch.dtype) -> float:
        """The reference of a chunk after the last: all sums are scaled to it by exp(-inf) = 0, not to inf - inf."""
        return torch.finfo(dtype).max

    @staticmethod
    def scale(x: Tensor, reference: Tensor) -> Tensor:
        return (x - reference).exp()


class _Ratio:
    """k / reference, the reference the root of a running sum of squares."""

    masked_key = 0.0

    @staticmethod
    def first(dtype: torch.dtype) -> float:
        return 1.0

    padding = first

    @staticmethod
    def scale(x: Tensor, reference: Tensor) -> Tensor:
        return x / reference


_Scale = type[_Exponential] | type[_Ratio]


def _scan(keys: Tensor, references: Tensor, values: Tensor, by: _Scale) -> tuple[Tensor, Tensor, Tensor]:
    """The lambda of query t of chunk c as decay[c,t] states[c] + sum_{s<=t} weights[c,t,s] v[c,s]^T.

    keys and references (b, u, c, t, k), values (b, u, c, t, w). weights (b, u, c, t, s, k): keys of the chunk scaled
    for query t, later ones 0. states (b, u, c, k, w): the sum over all earlier chunks, scaled for the last position of
    the chunk before. decay (b, u, c, t, k): from there to query t.
    """
    ends = references[:, :, :, -1]  # (b, u, c, k)
    starts = F.pad(ends, (0, 0, 1, 0), value=by.first(ends.dtype)).narrow(2, 0, ends.shape[2])
    chunk_sums = by.scale(keys, ends.unsqueeze(3)).transpose(-1, -2) @ values
    states = _states(chunk_sums, ends, starts, by)
    decay = by.scale(starts.unsqueeze(3), references)
    later = _later(CHUNK, keys.device, 1).unsqueeze(-1)
    weights = by.scale(keys.unsqueeze(3).masked_fill(later, by.masked_key), references.unsqueeze(4))
    return weights, decay, states


def _apply(queries: Tensor, values: Tensor, weights: Tensor, decay: Tensor, states: Tensor) -> Tensor:
    """The lambdas of `_scan` applied to queries (b, u, h, c, t, k): (b, u, h, c, t, v)."""
    logits = (weights @ queries.movedim(2, -1)).movedim(-1, 2)  # (b, u, h, c, t, s)
    return (queries * decay.unsqueeze(2)) @ states.unsqueeze(2) + logits @ values.unsqueeze(2)


def running_maximum(keys: Tensor, dim: int) -> Tensor:
    """max_{m<=n} k_m along an axis, finite also where every k is -inf. A constant: S_n / Z_n does not depend on it."""
    return keys.detach().cummax(dim=dim).values.clamp(min=torch.finfo(keys.dtype).min)


def _states(chunk_sums: Tensor, ends: Tensor, starts: Tensor, by: _Scale) -> Tensor:
    """states[c] = sum_{c'<c} of chunk_sums[c'] (b, u, c, k, w), scaled from ends[c'] to starts[c] = ends[c-1].

    In two levels, so that direct sums stay short: a million positions make 2048 groups of 32 chunks. Chunk c of group g
    sums the earlier chunks of g, and the state of g, which decays from the start of g to that of c.
    """
    chunks = ends.shape[2]
    ends, starts = (_in_parts(x, 2, GROUP, by.padding(x.dtype)) for x in (ends, starts))
    chunk_sums = _in_parts(chunk_sums, 2, GROUP)  # (b, u, g, c, k, w)
    within_group = _direct_states(chunk_sums, ends, starts, by)
    group_ends, group_starts = ends[:, :, :, -1], starts[:, :, :, 0]
    group_sums = (by.scale(ends, group_ends.unsqueeze(3)).unsqueeze(-1) * chunk_sums).sum(dim=3)  # (b, u, g, k, w)
    group_states = _direct_states(group_sums, group_ends, group_starts, by).unsqueeze(3)
    from_earlier_groups = by.scale(group_starts.unsqueeze(3), starts).unsqueeze(-1) * group_states
    return (within_group + from_earlier_groups).flatten(2, 3).narrow(2, 0, chunks)


def _direct_states(sums: Tensor, ends: Tensor, starts: Tensor, by: _Scale) -> Tensor:
    """sum_{s<t} of sums[s] (.., s, k, w), scaled from ends[s] (.., s, k) to starts[t] (.., t, k)."""
    itself_and_later = _later(ends.shape[-2], ends.device, 0).unsqueeze(-1)
    earlier = ends.unsqueeze(-3).masked_fill(itself_and_later, by.masked_key)  # (.., t, s, k)
    return torch.einsum("...tsk,...skw->...tkw", by.scale(earlier, starts.unsqueeze(-2)), sums)


def _in_parts(x: Tensor, axis: int, length: int, fill: float = 0.0) -> Tensor:
    """An axis cut into parts of a length, filled up to whole parts: (.., parts, length, ..).

    There are at least two parts, the last one never full, because torch.compile tells 0 and 1 from other sizes.
    """
    size = x.shape[axis]
    parts = size // length + 2
    padded = F.pad(x, [0, 0] * (x.ndim - 1 - axis) + [0, parts * length - size], value=fill)
    return padded.unflatten(axis, (parts, length))


def _later(length: int, device: torch.device, by: int) -> Tensor:
    """(t, s), True where s >= t + by."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(by)
