"""Reference implementations of the baselines: loops over positions, with the weights of the layers.

Each function takes a layer and maps x (b, dim, H, W). Positions n and m are pairs (row, column).
"""

import math

import torch


def project(convolution, x):
    """Apply a 1x1 convolution to x (d, H, W); returns (H, W, channels)."""
    return torch.einsum("od,dyx->yxo", convolution.weight[:, :, 0, 0], x)


def positions(x):
    return [(row, column) for row in range(x.shape[1]) for column in range(x.shape[2])]


def per_example(mix):
    def batched(layer, x):
        return torch.stack([mix(layer, example) for example in x])

    return batched


def softmax_attention(queries, logits, values):
    """Return rows (n, v); logits(n, m) is a function of the indices of query and key."""
    output = []
    for n in range(len(queries)):
        scores = torch.stack([logits(n, m) for m in range(len(values))])
        weights = (scores - scores.max()).exp()
        output.append((weights[:, None] * values).sum(0) / weights.sum())
    return torch.stack(output)


def clipped_entry(offset, table):
    middle = len(table) // 2
    return table[middle + max(-middle, min(middle, offset))]


def relative_attention(x, queries, keys, values, heads, row_table, column_table):
    """Multi-head attention with clipped relative positions: queries, keys and values (H, W, h c) to (h v, H, W)."""
    grid_positions = positions(x)
    output = []
    per_head = (torch.stack([t[n] for n in grid_positions]).chunk(heads, dim=1) for t in (queries, keys, values))
    for q, k, v in zip(*per_head, strict=True):

        def logits(n, m, q=q, k=k):
            (n_y, n_x), (m_y, m_x) = grid_positions[n], grid_positions[m]
            key = k[m] + clipped_entry(m_y - n_y, row_table) + clipped_entry(m_x - n_x, column_table)
            return q[n] @ key / math.sqrt(len(key))

        output.append(softmax_attention(q, logits, v))
    return torch.cat(output, dim=1).mT.reshape(-1, *x.shape[1:])


@per_example
def global_attention(layer, x):
    q, k, v = project(layer.projection, x).chunk(3, dim=-1)
    return relative_attention(x, q, k, v, layer.heads, layer.rows.table, layer.columns.table)


@per_example
def axial_attention(layer, x):
    def attend_in_columns(attention, x):
        output = []
        zero_table = torch.zeros_like(attention.offsets.table)
        for column in range(x.shape[2]):
            strip = x[:, :, column : column + 1]
            q, k, v = project(attention.projection, strip).chunk(3, dim=-1)
            output.append(relative_attention(strip, q, k, v, attention.heads, attention.offsets.table, zero_table))
        return torch.cat(output, dim=2)

    return attend_in_columns(layer.along_width, attend_in_columns(layer.along_height, x).mT).mT


@per_example
def augmented_attention(layer, x):
    projected = project(layer.projection, x)
    q, k = projected[..., : layer.key_channels], projected[..., layer.key_channels : 2 * layer.key_channels]
    attended = relative_attention(
        x, q, k, projected[..., 2 * layer.key_channels :], layer.heads, layer.rows.table, layer.columns.table
    )
    projected = torch.einsum("od,dyx->oyx", layer.output_projection.weight[:, :, 0, 0], attended)
    convolved = torch.zeros_like(x[:1]).expand(layer.dim_out - layer.value_channels, -1, -1).clone()
    for n in positions(x):
        for i, j, m in neighbors(n, x, 3):
            if m is not None:
                convolved[(slice(None), *n)] += layer.convolution.weight[:, :, i, j] @ x[(slice(None), *m)]
    return torch.cat([convolved, projected])


def neighbors(n, x, scope):
    """Yield the index (i, j) in the scope and the position of each neighbor, or None beyond the map."""
    radius = scope // 2
    for i in range(scope):
        for j in range(scope):
            row, column = n[0] + i - radius, n[1] + j - radius
            yield i, j, (row, column) if 0 <= row < x.shape[1] and 0 <= column < x.shape[2] else None


@per_example
def local_attention(layer, x):
    q, k, v = (part.unflatten(-1, (layer.heads, -1)) for part in project(layer.projection, x).chunk(3, dim=-1))
    output = x.new_zeros(layer.dim_out, *x.shape[1:])
    for n in positions(x):
        head_outputs = []
        for head in range(layer.heads):
            weight_sum, weighted_sum = 0, 0
            for i, j, m in neighbors(n, x, layer.scope):
                if m is not None:
                    key = k[m][head] + torch.cat([layer.row_table[head, i], layer.column_table[head, j]])
                    weight = (q[n][head] @ key / math.sqrt(len(key))).exp()
                    weight_sum, weighted_sum = weight_sum + weight, weighted_sum + weight * v[m][head]
            head_outputs.append(weighted_sum / weight_sum)
        output[(slice(None), *n)] = torch.cat(head_outputs)
    return output


@per_example
def local_relation(layer, x):
    q, k = project(layer.projection, x).chunk(2, dim=-1)
    values = x.movedim(0, -1) if layer.dim == layer.dim_out else project(layer.value_projection, x)
    first, _, second = layer.geometry_prior
    groups, radius = q.shape[-1], max(layer.scope // 2, 1)
    output = x.new_zeros(layer.dim_out, *x.shape[1:])
    for n in positions(x):
        weight_sum, weighted_sum = 0, 0
        for i, j, m in neighbors(n, x, layer.scope):
            if m is not None:
                offset = x.new_tensor([(i - layer.scope // 2) / radius, (j - layer.scope // 2) / radius])
                prior = second.weight @ (first.weight @ offset + first.bias).clamp(min=0) + second.bias
                weight = (prior - (q[n] - k[m]) ** 2).exp()
                weight_sum = weight_sum + weight
                weighted_sum = weighted_sum + weight[:, None] * values[m].reshape(groups, -1)
        output[(slice(None), *n)] = (weighted_sum / weight_sum[:, None]).flatten()
    return output


def clamped_neighbor(n, i, j, x, scope):
    """Return the position of the neighbor with index (i, j), clamped to the map."""
    row, column = n[0] + i - scope // 2, n[1] + j - scope // 2
    return min(max(row, 0), x.shape[1] - 1), min(max(column, 0), x.shape[2] - 1)


def batch_norm(norm, x):
    return (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias


def gamma(layer, x):
    """Return gamma(x) for one vector x, with norms in eval mode."""
    first, _, inner, second, _, last = layer.weighing
    x = inner.weight[:, :, 0, 0] @ batch_norm(first, x).clamp(min=0)
    return last.weight[:, :, 0, 0] @ batch_norm(second, x).clamp(min=0) + last.bias


@per_example
def pairwise_attention(layer, x):
    q, k, v = project(layer.projection, x).split([layer.depth, layer.depth, layer.dim_out], dim=-1)
    height, width = x.shape[1:]

    def encode_position(row, column):
        coordinates = [
            -1 + 2 * index / (side - 1) if side > 1 else -1 for index, side in ((row, height), (column, width))
        ]
        return layer.position.weight @ x.new_tensor(coordinates)

    output = x.new_zeros(layer.dim_out, height, width)
    for n in positions(x):
        weight_sum, weighted_sum = 0, 0
        for i in range(layer.scope):
            for j in range(layer.scope):
                m = clamped_neighbor(n, i, j, x, layer.scope)
                relation = torch.cat([q[n] - k[m], encode_position(*n) - encode_position(*m)])
                weight = gamma(layer, relation).exp()
                weight_sum = weight_sum + weight
                weighted_sum = weighted_sum + weight[:, None] * v[m].reshape(len(weight), -1)
        output[(slice(None), *n)] = (weighted_sum / weight_sum[:, None]).flatten()
    return output


@per_example
def patchwise_attention(layer, x):
    q, k, v = project(layer.projection, x).split([layer.depth, layer.depth, layer.dim_out], dim=-1)
    output = x.new_zeros(layer.dim_out, *x.shape[1:])
    for n in positions(x):
        patch = [clamped_neighbor(n, i, j, x, layer.scope) for i in range(layer.scope) for j in range(layer.scope)]
        patch_keys = torch.stack([k[m] for m in patch], dim=1).flatten()  # r r neighbors for each channel
        weights = gamma(layer, torch.cat([q[n], patch_keys])).reshape(layer.groups, len(patch))
        groups = torch.stack([v[m] for m in patch]).unflatten(1, (layer.groups, -1))
        output[(slice(None), *n)] = torch.einsum("gj,jgc->gc", weights, groups).flatten()
    return output


@per_example
def double_attention(layer, x):
    features, keys, queries = project(layer.projection, x).flatten(0, 1).chunk(3, dim=1)  # (n, depth)
    gathered = sum(torch.outer(a, b) for a, b in zip(features, keys.softmax(dim=0), strict=True))
    distributed = torch.stack([gathered @ v.softmax(dim=0) for v in queries], dim=1)
    return (layer.output_projection.weight[:, :, 0, 0] @ distributed).unflatten(1, x.shape[1:])


@per_example
def efficient_attention(layer, x):
    output = []
    per_head = (part.flatten(0, 1).chunk(layer.heads, dim=1) for part in project(layer.projection, x).chunk(3, dim=-1))
    for q, k, v in zip(*per_head, strict=True):
        context = sum(torch.outer(key, value) for key, value in zip(k.softmax(dim=0), v, strict=True))
        output.append(torch.stack([query.softmax(dim=0) @ context for query in q]))
    mixed = torch.cat(output, dim=1).mT
    return (layer.output_projection.weight[:, :, 0, 0] @ mixed).unflatten(1, x.shape[1:])


def make_performer(feature):
    @per_example
    def performer(layer, x):
        output = []
        projected = project(layer.projection, x).chunk(3, dim=-1)
        per_head = (part.flatten(0, 1).chunk(layer.heads, dim=1) for part in projected)
        for q, k, v in zip(*per_head, strict=True):
            query_features, key_features = feature(layer, q), feature(layer, k)
            outputs = []
            for a in query_features:
                weights = [a @ b for b in key_features]
                outputs.append(sum(w * value for w, value in zip(weights, v, strict=True)) / sum(weights))
            output.append(torch.stack(outputs))
        return torch.cat(output, dim=1).mT.unflatten(1, x.shape[1:])

    return performer


def relu_features(layer, x):
    return (x @ layer.weights.mT / math.sqrt(len(layer.weights))).clamp(min=0) + 1e-3


def softmax_features(layer, x):
    x = x / x.shape[1] ** 0.25
    return (x @ layer.weights.mT - (x * x).sum(1, keepdim=True) / 2).exp() / math.sqrt(len(layer.weights))


@per_example
def channel_attention(layer, x):
    convolution, excitation = layer
    z = torch.nn.functional.conv2d(x[None], convolution.weight, padding=1)[0]
    hidden = (excitation.fc1.weight[:, :, 0, 0] @ z.mean(dim=(1, 2)) + excitation.fc1.bias).clamp(min=0)
    gate = 1 / (1 + (-(excitation.fc2.weight[:, :, 0, 0] @ hidden + excitation.fc2.bias)).exp())
    return z * gate[:, None, None]


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
