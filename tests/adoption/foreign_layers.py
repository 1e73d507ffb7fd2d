"""The lambda layers of other packages, written from their formulas, with their attributes and state-dict keys.

Letters: b batch, h heads, k query depth, u intra-depth, v value depth, n and m positions, r side of the scope.
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


def apply_lambdas(queries, keys, values, position):
    """Queries (b, h, k, n), keys (b, k, u, m), values (b, v, u, m), position lambdas (b, k, v, n) -> (b, h v, n)."""
    content = torch.einsum("bkum,bvum->bkv", keys.softmax(dim=-1), values)
    lambdas = content.unsqueeze(-1) + position
    return torch.einsum("bhkn,bkvn->bhvn", queries, lambdas).flatten(1, 2)


def local_lambdas(values, grid, weight, bias=None):
    """Position lambdas (b, k, v, n) of values (b, v, u, n) by a convolution weight (k, u, 1, r..) over the grid."""
    maps = values.transpose(1, 2).unflatten(3, grid)
    padding = [side // 2 for side in weight.shape[3:]]
    convolution = F.conv3d if len(grid) == 2 else F.conv2d
    return convolution(maps, weight, bias, padding=(0, *padding)).flatten(3)


def pair_lambdas(values, embeddings):
    """Position lambdas (b, k, v, n) of values (b, v, u, m) and embeddings (n, m, k, u)."""
    return torch.einsum("nmku,bvum->bkvn", embeddings, values)


def relative_embeddings(table, grid):
    """Embeddings (n, m, k, u) on a grid from a table (2 H - 1, 2 W - 1, k, u)."""
    positions = torch.cartesian_prod(*(torch.arange(side) for side in grid))
    offsets = positions[None] - positions[:, None] + torch.tensor(grid) - 1
    return table[offsets[..., 0], offsets[..., 1]]


class Lucidrains(nn.Module):
    """Keys (u k), values (u v); to_q, to_k and to_v may be Sequentials, as in LambdaUNet."""

    def __init__(
        self, dim, dim_out, *, dim_k, u, heads, r=None, n=None, num_positions=None, norms=True, sequential=False
    ):
        super().__init__()
        self.u, self.heads = u, heads
        v = dim_out // heads

        def projection(channels):
            convolution = nn.Conv2d(dim, channels, 1, bias=False)
            return nn.Sequential(convolution) if sequential else convolution

        self.to_q, self.to_k, self.to_v = projection(dim_k * heads), projection(dim_k * u), projection(v * u)
        if norms:
            self.norm_q, self.norm_v = nn.BatchNorm2d(dim_k * heads), nn.BatchNorm2d(v * u)
        if r is not None:
            self.pos_conv = nn.Conv3d(u, dim_k, (1, r, r), padding=(0, r // 2, r // 2))
        elif n is not None:
            self.rel_pos_emb = nn.Parameter(torch.randn(2 * n - 1, 2 * n - 1, dim_k, u))
        else:
            self.pos_emb = nn.Parameter(torch.randn(num_positions, num_positions, dim_k, u))

    def forward(self, x):
        grid = x.shape[2:]
        queries, keys, values = self.to_q(x).flatten(2), self.to_k(x).flatten(2), self.to_v(x)
        if hasattr(self, "norm_q"):
            queries, values = self.norm_q(self.to_q(x)).flatten(2), self.norm_v(values)
        queries = queries.unflatten(1, (self.heads, -1))
        keys = keys.unflatten(1, (self.u, -1)).transpose(1, 2)
        values = values.flatten(2).unflatten(1, (self.u, -1)).transpose(1, 2)
        return apply_lambdas(queries, keys, values, self.position_lambdas(values, grid)).unflatten(2, grid)

    def position_lambdas(self, values, grid):
        if hasattr(self, "pos_conv"):
            return local_lambdas(values, grid, self.pos_conv.weight, self.pos_conv.bias)
        if hasattr(self, "rel_pos_emb"):
            return pair_lambdas(values, relative_embeddings(self.rel_pos_emb, grid))
        return pair_lambdas(values, self.pos_emb)


class TemporalLambdaUNet(Lucidrains):
    """With a convolution over the slices of a volume, which are examples in a row."""

    def __init__(self, dim, dim_out, *, slices, **options):
        super().__init__(dim, dim_out, **options)
        convolution = nn.Conv2d(options["u"], options["dim_k"], (1, 3), padding=(0, 1))
        if options.get("sequential"):
            self.num_slices, self.temp_conv = slices, convolution
        else:
            self.cfg, self.tem_conv = SimpleNamespace(var_t=slices), convolution

    def position_lambdas(self, values, grid):
        convolution, slices = (
            (self.temp_conv, self.num_slices) if hasattr(self, "temp_conv") else (self.tem_conv, self.cfg.var_t)
        )
        columns = values.unflatten(0, (-1, slices)).permute(0, 4, 3, 2, 1)  # (g, p, u, v, t)
        lambdas = convolution(columns.flatten(0, 1)).unflatten(0, columns.shape[:2])  # (g, p, k, v, t)
        return super().position_lambdas(values, grid) + lambdas.permute(0, 4, 2, 3, 1).flatten(0, 1)


class Holocron(nn.Module):
    """Keys (k u), values (v u); a table R (k, u, 1, r, r), or embeddings of all pairs."""

    def __init__(self, dim, dim_out, *, dim_k, u, heads, r=None, num_positions=None):
        super().__init__()
        self.u, self.num_heads = u, heads
        v = dim_out // heads
        self.to_q = nn.Conv2d(dim, dim_k * heads, 1, bias=False)
        self.to_k = nn.Conv2d(dim, dim_k * u, 1, bias=False)
        self.to_v = nn.Conv2d(dim, v * u, 1, bias=False)
        self.norm_q, self.norm_v = nn.BatchNorm2d(dim_k * heads), nn.BatchNorm2d(v * u)
        if r is not None:
            self.R = nn.Parameter(torch.randn(dim_k, u, 1, r, r))
        else:
            self.pos_emb = nn.Parameter(torch.randn(num_positions, num_positions, dim_k, u))

    def forward(self, x):
        grid = x.shape[2:]
        queries = self.norm_q(self.to_q(x)).flatten(2).unflatten(1, (self.num_heads, -1))
        keys = self.to_k(x).flatten(2).unflatten(1, (-1, self.u))
        values = self.norm_v(self.to_v(x)).flatten(2).unflatten(1, (-1, self.u))
        local = hasattr(self, "R")
        position = local_lambdas(values, grid, self.R) if local else pair_lambdas(values, self.pos_emb)
        return apply_lambdas(queries, keys, values, position).unflatten(2, grid)


class DLi14(nn.Module):
    """One projection to queries (h k), keys (u k) and values (u v); 3x3 average pooling with count_include_pad."""

    def __init__(self, d, dk=16, du=1, Nh=4, r=23, stride=1):  # noqa: N803 - d-li14's names
        super().__init__()
        self.dk, self.du, self.Nh, self.dv = dk, du, Nh, d // Nh
        self.conv_qkv = nn.Conv2d(d, Nh * dk + dk * du + self.dv * du, 1, bias=False)
        self.norm_q, self.norm_v = nn.BatchNorm2d(Nh * dk), nn.BatchNorm2d(self.dv * du)
        self.lambda_conv = nn.Conv3d(du, dk, (1, r, r), padding=(0, r // 2, r // 2))
        if stride > 1:
            self.avgpool = nn.AvgPool2d(kernel_size=3, stride=stride, padding=1)

    def forward(self, x):
        grid = x.shape[2:]
        sizes = [self.Nh * self.dk, self.dk * self.du, self.dv * self.du]
        queries, keys, values = self.conv_qkv(x).split(sizes, dim=1)
        queries = self.norm_q(queries).flatten(2).unflatten(1, (self.Nh, -1))
        keys = keys.flatten(2).unflatten(1, (self.du, -1)).transpose(1, 2)
        values = self.norm_v(values).flatten(2).unflatten(1, (self.du, -1)).transpose(1, 2)
        position = local_lambdas(values, grid, self.lambda_conv.weight, self.lambda_conv.bias)
        output = apply_lambdas(queries, keys, values, position).unflatten(2, grid)
        return self.avgpool(output) if hasattr(self, "avgpool") else output


class Leaderj1001(nn.Module):
    """Keys (k u), values (v u), in 1-D or 2-D. With u > 1 and a scope, its position term misreads the values."""

    def __init__(self, dim, dim_out, *, k, u, heads, m, dimensions=2, stride=1, normalized_keys=False):
        super().__init__()
        self.kk, self.uu, self.vv, self.mm, self.heads = k, u, dim_out // heads, m, heads
        convolution = (nn.Conv1d, nn.Conv2d)[dimensions - 1]
        norm = (nn.BatchNorm1d, nn.BatchNorm2d)[dimensions - 1]

        def projection(channels, *, normalized=True):
            layers = [convolution(dim, channels, 1, bias=False), norm(channels)]
            return nn.Sequential(*layers[: 1 + normalized])

        self.queries, self.values = projection(k * heads), projection(self.vv * u)
        self.keys = projection(k * u, normalized=normalized_keys)
        self.embedding = nn.Parameter(torch.randn(k, u, *((1,) + (m,) * dimensions if m else ())))
        if stride > 1:
            self.avgpool = nn.AvgPool2d(stride, stride)

    def forward(self, x):
        grid = x.shape[2:]
        queries = self.queries(x).flatten(2).unflatten(1, (self.heads, -1))
        keys = self.keys(x).flatten(2).unflatten(1, (-1, self.uu))
        values = self.values(x).flatten(2)
        content_values = values.unflatten(1, (-1, self.uu))
        if self.mm:
            position_values = values.unflatten(1, (self.uu, -1)).transpose(1, 2)
            position = local_lambdas(position_values, grid, self.embedding)
        else:
            position = torch.einsum("ku,bvun->bkvn", self.embedding, content_values)
        output = apply_lambdas(queries, keys, content_values, position).unflatten(2, grid)
        return self.avgpool(output) if hasattr(self, "avgpool") else output
