"""The tensors of a third-party layer as those of a layer of this package, and back.

A `Family` names the third-party tensors and the order of their axes. Each tensor of ours is then a
view of one of them, its `Source`. `convert` reads these views and `convert_back` writes to them.
"""

import copy
import math
from dataclasses import dataclass
from functools import reduce
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.errors import InputError
from lambdanets.layers import DenseEmbedding, LambdaLayer1d, LambdaLayer2d, LambdaLayer3d, RelativeEmbedding
from lambdanets.layers.base import LambdaInputs
from lambdanets.layers.lambda_layer import GridLambdaLayer

Tensors = dict[str, Tensor]  # a state dict
Shapes = dict[str, tuple[int, ...]]  # of the tensors in a state dict
Rows = slice | EllipsisType
_LAYERS = {1: LambdaLayer1d, 2: LambdaLayer2d, 3: LambdaLayer3d}


class SlicesLambdaLayer(LambdaLayer3d):
    """The layer of LambdaUNet: LambdaLayer3d on maps (b slices, dim, H, W); `slices` in a row are one volume."""

    def __init__(self, *args: Any, slices: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.slices = slices

    def prepare(self, x: Tensor, mask: Tensor | None = None) -> LambdaInputs:
        volumes = x.unflatten(0, (-1, self.slices)).transpose(1, 2)
        masks = None if mask is None else mask.unflatten(0, (-1, self.slices))
        return super().prepare(volumes, masks)

    def finish(self, output: Tensor, inputs: LambdaInputs) -> Tensor:
        return super().finish(output, inputs).transpose(1, 2).flatten(0, 1)


@dataclass(frozen=True)
class Source:
    """The part of a third-party tensor that has the elements of one of our tensors.

    name: key in the third-party state dict. rows: along the first axis. shape: into which they are
    reshaped. axes: of that shape, in our order.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    rows: Rows = ...

    def view(self, x: Tensor) -> Tensor:
        """The part of the third-party tensor x; shares its memory if x is contiguous."""
        return x[self.rows].reshape(self.shape).permute(self.axes)


@dataclass(frozen=True)
class Origin:
    """Where the tensors of an adopted layer come from, to convert them back.

    sources: keyed by the layer's names. shapes: of its tensors. foreign_shapes: of the third-party
    tensors. biases: of third-party projections; ours have none.
    """

    sources: dict[str, Source]
    shapes: Shapes
    foreign_shapes: Shapes
    biases: Tensors


@dataclass(frozen=True)
class Family:
    """Third-party lambda layers with the same parameter names and formula.

    They are recognized by their tensors, not by their class, because files are copied into projects.
    Letters: h heads, k query depth, u intra-depth, v value depth; y, x sides of the scope; n, m positions.

    projections: modules of queries, keys and values. If they are one module, its output channels
        are the queries, then the keys, then the values.
    tables: names of the possible embedding tables, with a letter for each axis, or 1.
    heads: the attribute that is h.
    intra_depth_first: whether the channels of keys and values are (u, k) and (u, v); otherwise (k, u) and (v, u).
    norms: modules that normalize queries and values; a layer may lack them.
    pool: the attribute with the pooling of the output; a layer may lack it.
    slice_table: name of the table along the slices, (k, u, 1, z), if the examples of a batch are
        the slices of volumes. slices: dotted name of their number.
    """

    name: str
    projections: tuple[str, str, str]
    tables: tuple[tuple[str, str], ...]
    heads: str = "heads"
    intra_depth_first: bool = False
    norms: tuple[str, str] = ("norm_q", "norm_v")
    pool: str = "avgpool"
    slice_table: str = ""
    slices: str = ""

    def recognizes(self, layer: Any) -> bool:
        names = [*(f"{projection}.weight" for projection in self.projections), *filter(None, [self.slice_table])]
        has_tensors = all(_tensor(layer, name) is not None for name in names)
        return hasattr(layer, self.heads) and has_tensors and bool(self._tables_of(layer))

    def sizes(self, layer: Any) -> dict[str, int]:
        """The sizes of a recognized layer, by letter."""
        table, axes = self._tables_of(layer)[0]
        sides = zip(axes, layer.state_dict()[table].shape, strict=True)
        return {"u": 1, **dict(sides), "h": int(getattr(layer, self.heads))}

    def sources(self, layer: Any) -> dict[str, Source]:
        """The source of each tensor of our layer, by its name.

        Biases of projections have sources too, although our projections have none.
        """
        tensors, sizes = layer.state_dict(), self.sizes(layer)
        h, k, u = (sizes[letter] for letter in "hku")
        table, letters = self._tables_of(layer)[0]
        axes = sorted(range(len(letters)), key=lambda axis: letters[axis] in "ku")  # sides, k, u
        tables = {"embedding.table": (table, axes)}
        if self.slice_table:
            tables = {"embedding.0.table": (table, axes), "embedding.1.table": (self.slice_table, [2, 3, 0, 1])}
        sources = {
            name: Source(theirs, tuple(tensors[theirs].shape), tuple(order)) for name, (theirs, order) in tables.items()
        }
        for name, theirs in (("position_bias", table), ("slice_bias", self.slice_table)):
            bias = f"{theirs.rpartition('.')[0]}.bias"  # of the convolution with the table
            if bias in tensors:
                sources[name] = Source(bias, (k,), (0,))
        rows: tuple[Rows, ...] = (..., ..., ...)
        if len(set(self.projections)) == 1:
            rows = slice(h * k), slice(h * k, (h + u) * k), slice((h + u) * k, None)
        outer = u if self.intra_depth_first else 1
        for ours, theirs, part, first in (
            ("query_projection", self.projections[0], rows[0], 1),
            ("key_projection", self.projections[1], rows[1], outer),
            ("value_projection", self.projections[2], rows[2], outer),
            ("query_norm", self.norms[0], ..., 1),
            ("value_norm", self.norms[1], ..., outer),
        ):
            for name in tensors:
                if name.startswith(f"{theirs}."):
                    source = _channels(name, tensors[name], part, first)
                    sources[f"{ours}{name.removeprefix(theirs)}"] = source
        return sources

    def _tables_of(self, layer: Any) -> list[tuple[str, str]]:
        tensors = [(name, axes, _tensor(layer, name)) for name, axes in self.tables]
        return [(name, axes) for name, axes, x in tensors if x is not None and x.ndim == len(axes)]


def _tensor(layer: Any, name: str) -> Tensor | None:
    """The tensor of a layer with a dotted name."""
    value = reduce(lambda owner, part: getattr(owner, part, None), name.split("."), layer)
    return value if isinstance(value, Tensor) else None


def _channels(name: str, x: Tensor, rows: Rows, outer: int) -> Source:
    """The source of a tensor with channels (outer, inner), which are (inner, outer) in ours."""
    if not x.ndim:  # num_batches_tracked
        return Source(name, (), ())
    return Source(name, (outer, -1, *x.shape[1:]), (1, 0, *range(2, x.ndim + 1)), rows)


def convert(layer: Any, family: Family) -> GridLambdaLayer:
    """A layer of this package with the weights, norms, modes, dtypes and device of another layer.

    Our projections have no biases. Those of queries and values are folded into the running means of
    the batch norms after them; that of keys has no effect, because softmax over positions is
    invariant to it. The bias along slices is added to the position bias.

    Raises InputError, or another exception, if the tensors are not those of a lambda layer.
    """
    originals, sources = layer.state_dict(keep_vars=True), family.sources(layer)
    if unknown := originals.keys() - {source.name for source in sources.values()}:
        names = ", ".join(sorted(unknown))
        raise InputError(f"it has tensors that lambda layers do not have: {names}")
    tensors = {name: tensor.detach() for name, tensor in originals.items()}
    _add_biases(tensors, sources, -1)
    converted = _build(layer, family).train(layer.training)
    modules = dict(layer.named_modules())
    for ours, theirs in zip(("query_norm", "value_norm"), family.norms, strict=True):
        norm: Any = copy.deepcopy(modules.get(theirs, nn.Identity()))
        if family.slice_table and isinstance(modules.get(theirs), nn.BatchNorm2d):
            norm.__class__ = nn.BatchNorm3d  # the same norm for volumes
        setattr(converted, ours, norm)
    state, shapes = {}, _shapes(converted)
    for name, shape in shapes.items():
        source = sources[name]
        view = source.view(tensors[source.name])
        if view.numel() != math.prod(shape):
            raise InputError(f"its {source.name} does not fit {name}, {shape}")
        state[name] = view.reshape(shape).clone(memory_format=torch.contiguous_format)
    converted.load_state_dict(state, assign=True)
    for name, parameter in converted.named_parameters():
        parameter.requires_grad_(originals[sources[name].name].requires_grad)
    lost = {source.name for name, source in sources.items() if name not in shapes}
    biases = {name: tensors[name].clone() for name in lost}
    converted.origin = Origin(sources, shapes, _shapes(layer), biases)
    return converted


def convert_back(layer: GridLambdaLayer) -> Tensors:
    """The state dict of a converted layer with the third-party keys and shapes.

    Raises InputError if the layer has other tensors than when it was converted.
    """
    origin, tensors, shapes = layer.origin, layer.state_dict(), _shapes(layer)
    assert isinstance(origin, Origin)
    if changed := {name for name, _ in shapes.items() ^ origin.shapes.items()}:
        names = ", ".join(sorted(changed))
        raise InputError(f"it has changed since it was converted, in the shape of {names}")
    weight = tensors["value_projection.weight"]
    foreign = scatter(origin.sources, tensors, origin.foreign_shapes)
    foreign |= {name: bias.to(weight) for name, bias in origin.biases.items()}
    _add_biases(foreign, origin.sources, 1)
    return {name: foreign[name] for name in origin.foreign_shapes}


def scatter(sources: dict[str, Source], ours: Tensors, shapes: Shapes) -> Tensors:
    """Third-party tensors of these shapes that have our tensors as views, and 0 elsewhere."""
    foreign: Tensors = {}
    for name, tensor in ours.items():
        source = sources[name]
        if source.name not in foreign:
            foreign[source.name] = tensor.new_zeros(shapes[source.name])
        view = source.view(foreign[source.name])
        view.copy_(tensor.reshape(view.shape))
    return foreign


def _shapes(layer: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}


def _add_biases(tensors: Tensors, sources: dict[str, Source], sign: int) -> None:
    """Add the biases that ours lacks to running means and position bias, in a third-party state dict."""
    for bias_name, total_name, factor in (
        ("query_projection.bias", "query_norm.running_mean", sign),
        ("value_projection.bias", "value_norm.running_mean", sign),
        ("slice_bias", "position_bias", -sign),
    ):
        bias, total = sources.get(bias_name), sources.get(total_name)
        if bias is not None:
            if total is None:
                raise InputError(f"its {bias.name} has no {total_name} to be added to")
            old = tensors[total.name]
            tensors[total.name] = old + factor * tensors[bias.name][bias.rows].to(old)


def _build(layer: Any, family: Family) -> GridLambdaLayer:
    """A layer of this package with the sizes of another, without norms, on the meta device."""
    sizes, sources = family.sizes(layer), family.sources(layer)
    values = sources["value_projection.weight"]
    weight = values.view(layer.state_dict()[values.name])  # (v, u, d, 1..) or (v u, 1, d, 1..)
    dimensions, k, u, h = weight.ndim - 3, *(sizes[letter] for letter in "kuh")
    if dimensions not in _LAYERS:
        raise InputError("its projections are not convolutions")
    layer_type: type[GridLambdaLayer] = _LAYERS[dimensions]
    options: dict[str, Any]
    sides = tuple(sizes[letter] for letter in "yx" if letter in sizes)
    if "n" in sizes:
        options = {"embedding": DenseEmbedding(sizes["n"], sizes["m"], k, u, device="meta")}
    elif family.slice_table:
        layer_type = SlicesLambdaLayer
        scopes = (1, *sides), (layer.state_dict()[family.slice_table].shape[3], 1, 1)
        tables = [RelativeEmbedding(scope, k, u, device="meta") for scope in scopes]
        slices = reduce(getattr, family.slices.split("."), layer)
        options = {"embedding": tables, "content": "slices", "slices": slices}
    else:  # without sides, the scope is one position
        options = {"scope": sides or (1,) * dimensions}
    pool = getattr(layer, family.pool, nn.Identity())
    if not isinstance(pool, nn.Identity):
        pool = copy.deepcopy(pool)
        if pool.kernel_size == pool.stride and pool.padding in (0, (0,) * dimensions):
            pool.ceil_mode, pool.count_include_pad = True, False  # to support odd sides
        stride = pool.stride if isinstance(pool.stride, int) else pool.stride[0]
        options |= {"pool": pool, "stride": stride}
    converted = layer_type(
        weight.shape[2],
        weight.shape[:2].numel() // u * h,
        query_depth=k,
        heads=h,
        intra_depth=u,
        position_bias="position_bias" in sources,
        batch_norm=False,
        device="meta",
        **options,
    )
    converted._owns_embedding = True
    return converted
