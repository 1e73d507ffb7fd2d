"""Reference implementations of the baselines over all pairs of positions, with the weights of the layers.

Each function takes a layer and maps x (b, dim, H, W). Positions n and m are rows of x; the indices of neighbors are j.
"""

import math

import torch
import torch.nn.functional as F


def project(convolution, x):
    """Apply a 1x1 convolution; returns (b, n, channels)."""
    return x.flatten(2).mT @ convolution.weight[:, :, 0, 0].mT


def to_maps(rows, x):
    """Return rows (b, n, c) as maps with the sides of x."""
    return rows.mT.unflatten(2, x.shape[2:])


def coordinates(x):
    """Return row and column of each position, (n,)."""
    height, width = x.shape[2:]
    return torch.arange(height).repeat_interleave(width), torch.arange(width).repeat(height)


def offsets(x):
    """Return m - n in rows and in columns, (n, m) each."""
    return [axis[None] - axis[:, None] for axis in coordinates(x)]


def split_heads(rows, heads):
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(rows):
    return rows.transpose(1, 2).flatten(2)


def attend(queries, keys, values, heads, embeddings, allowed=None):
    """Return softmax_m(q[n] . (k[m] + embeddings[n, m]) / sqrt(c)) v[m] of all heads, (b, n, h v)."""
    queries, keys, values = (split_heads(rows, heads) for rows in (queries, keys, values))
    logits = torch.einsum("bhnc,bhnmc->bhnm", queries, keys.unsqueeze(2) + embeddings) / math.sqrt(keys.shape[-1])
    if allowed is not None:
        logits = logits.masked_fill(~allowed, -torch.inf)
    return join_heads(logits.softmax(-1) @ values)


def clipped_entries(table, offset):
    middle = len(table) // 2
    return table[offset.clamp(-middle, middle) + middle]


def relative_attention(layer, x, queries, keys, values):
    rows, columns = offsets(x)
    embeddings = clipped_entries(layer.rows.table, rows) + clipped_entries(layer.columns.table, columns)
    return to_maps(attend(queries, keys, values, layer.heads, embeddings), x)


def global_attention(layer, x):
    return relative_attention(layer, x, *project(layer.projection, x).chunk(3, dim=-1))


def axial_attention(layer, x):
    def attend_in_columns(attention, x):
        (rows, columns), parts = offsets(x), project(attention.projection, x).chunk(3, dim=-1)
        embeddings = clipped_entries(attention.offsets.table, rows)
        return to_maps(attend(*parts, attention.heads, embeddings, columns == 0), x)

    return attend_in_columns(layer.along_width, attend_in_columns(layer.along_height, x).mT).mT


def augmented_attention(layer, x):
    sizes = [layer.key_channels, layer.key_channels, layer.value_channels]
    attended = relative_attention(layer, x, *project(layer.projection, x).split(sizes, dim=-1))
    projected = to_maps(project(layer.output_projection, attended), x)
    return torch.cat([F.conv2d(x, layer.convolution.weight, padding=1), projected], dim=1)


def local_attention(layer, x):
    radius, (rows, columns) = layer.scope // 2, offsets(x)
    entries = [
        table[:, offset.clamp(-radius, radius) + radius]
        for table, offset in ((layer.row_table, rows), (layer.column_table, columns))
    ]
    allowed = (rows.abs() <= radius) & (columns.abs() <= radius)
    parts = project(layer.projection, x).chunk(3, dim=-1)
    return to_maps(attend(*parts, layer.heads, torch.cat(entries, dim=-1), allowed), x)


def local_relation(layer, x):
    queries, keys = project(layer.projection, x).chunk(2, dim=-1)  # (b, n, g)
    values = x.flatten(2).mT if layer.dim == layer.dim_out else project(layer.value_projection, x)
    radius, (rows, columns) = layer.scope // 2, offsets(x)
    prior = layer.geometry_prior(torch.stack([rows, columns], dim=-1).to(x.dtype) / max(radius, 1))
    similarity = prior - (queries.unsqueeze(2) - keys.unsqueeze(1)) ** 2  # (b, n, m, g)
    beyond = (rows.abs() > radius) | (columns.abs() > radius)
    weights = similarity.masked_fill(beyond.unsqueeze(-1), -torch.inf).softmax(dim=2)
    return to_maps(weighted_sum(weights, values.unsqueeze(1).expand(-1, len(rows), -1, -1)), x)


def weighted_sum(weights, values):
    """Sum values (b, n, j, g c) over j with weights (b, n, j, g)."""
    groups = values.unflatten(-1, (weights.shape[-1], -1))
    return (weights.unsqueeze(-1) * groups).sum(2).flatten(2)


def clamped_neighbors(x, scope):
    """Return the index of each neighbor, clamped to the map, (n, j)."""
    steps = torch.arange(scope) - scope // 2
    down, right = steps.repeat_interleave(scope), steps.repeat(scope)
    rows, columns = (axis.unsqueeze(1) for axis in coordinates(x))
    return (rows + down).clamp(0, x.shape[2] - 1) * x.shape[3] + (columns + right).clamp(0, x.shape[3] - 1)


def batch_norm(norm, x):
    return (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias


def gamma(layer, x):
    """Apply gamma to the vectors of the last axis, with norms in eval mode."""
    first, _, inner, second, _, last = layer.weighing
    x = batch_norm(first, x).clamp(min=0) @ inner.weight[:, :, 0, 0].mT
    return batch_norm(second, x).clamp(min=0) @ last.weight[:, :, 0, 0].mT + last.bias


def pairwise_attention(layer, x):
    queries, keys, values = project(layer.projection, x).split([layer.depth, layer.depth, layer.dim_out], dim=-1)
    sides = zip(coordinates(x), x.shape[2:], strict=True)
    positions = torch.stack([-1 + 2 * axis.to(x.dtype) / max(side - 1, 1) for axis, side in sides], dim=-1)
    encoded, m = positions @ layer.position.weight.mT, clamped_neighbors(x, layer.scope)
    differences = (encoded.unsqueeze(1) - encoded[m]).expand(len(x), -1, -1, -1)
    weights = gamma(layer, torch.cat([queries.unsqueeze(2) - keys[:, m], differences], dim=-1)).softmax(dim=2)
    return to_maps(weighted_sum(weights, values[:, m]), x)


def patchwise_attention(layer, x):
    queries, keys, values = project(layer.projection, x).split([layer.depth, layer.depth, layer.dim_out], dim=-1)
    m = clamped_neighbors(x, layer.scope)
    patches = keys[:, m].mT.flatten(2)  # r r neighbors for each channel
    weights = gamma(layer, torch.cat([queries, patches], dim=-1)).unflatten(-1, (layer.groups, -1)).mT
    return to_maps(weighted_sum(weights, values[:, m]), x)


def double_attention(layer, x):
    features, keys, queries = project(layer.projection, x).chunk(3, dim=-1)
    gathered = features.mT @ keys.softmax(dim=1)  # (b, depth, depth)
    return to_maps(project(layer.output_projection, to_maps(queries.softmax(dim=-1) @ gathered.mT, x)), x)


def efficient_attention(layer, x):
    queries, keys, values = (split_heads(p, layer.heads) for p in project(layer.projection, x).chunk(3, dim=-1))
    mixed = join_heads(queries.softmax(dim=-1) @ (keys.softmax(dim=2).mT @ values))
    return to_maps(project(layer.output_projection, to_maps(mixed, x)), x)


def make_performer(feature):
    def performer(layer, x):
        queries, keys, values = (split_heads(p, layer.heads) for p in project(layer.projection, x).chunk(3, dim=-1))
        weights = feature(layer, queries) @ feature(layer, keys).mT
        return to_maps(join_heads(weights @ values / weights.sum(-1, keepdim=True)), x)

    return performer


def relu_features(layer, x):
    return (x @ layer.weights.mT / math.sqrt(len(layer.weights))).clamp(min=0) + 1e-3


def softmax_features(layer, x):
    x = x / x.shape[-1] ** 0.25
    return (x @ layer.weights.mT - (x * x).sum(-1, keepdim=True) / 2).exp() / math.sqrt(len(layer.weights))


def channel_attention(layer, x):
    convolution, excitation = layer
    z = F.conv2d(x, convolution.weight, padding=1)
    hidden = (z.mean(dim=(2, 3)) @ excitation.fc1.weight[:, :, 0, 0].mT + excitation.fc1.bias).clamp(min=0)
    return z * (hidden @ excitation.fc2.weight[:, :, 0, 0].mT + excitation.fc2.bias).sigmoid()[:, :, None, None]


REFERENCES = {
    "channel_attention": channel_attention,
    "double_attention": double_attention,
    "efficient_attention": efficient_attention,
    "augmented_attention": augmented_attention,
    "global_attention": global_attention,
    "axial_attention": axial_attention,
    "local_attention": local_attention,
    "local_relation": local_relation,
    "pairwise_attention": pairwise_attention,
    "patchwise_attention": patchwise_attention,
    "performer_relu": make_performer(relu_features),
    "performer_softmax": make_performer(softmax_features),
}
