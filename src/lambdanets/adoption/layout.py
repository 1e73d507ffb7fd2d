"""The tensors of a third-party layer as those of a layer of this package, and back.

A `Family` names the third-party tensors and the order of their axes. Each tensor of ours is then a
view of one of them. `convert` reads these views and `convert_back` writes to them.
"""

import copy
import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.errors import InputError
from lambdanets.layers import DenseEmbedding, LambdaLayer1d, LambdaLayer2d, LambdaLayer3d, RelativeEmbedding
from lambdanets.layers.base import LambdaInputs
from lambdanets.layers.lambda_layer import GridLambdaLayer

Tensors = dict[str, Tensor]  # a state dict
Shapes = dict[str, tuple[int, ...]]  # of the tensors in a state dict
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
class Family:
    """Third-party lambda layers with the same attributes.

    Names are attributes of the layers, dotted for attributes of their modules.

    name: for messages. projections: of queries, keys and values; one name for one projection to all,
        in this order.
    tables: possible tables of embeddings, with a letter for each axis: k query depth, u intra-depth,
        y and x offsets, n and m positions, 1 an axis of length 1. The first that a layer has counts.
    heads: the attribute with the number of heads.
    intra_depth_first: whether channels of keys and values are (u, k) and (u, v), not (k, u), (v, u).
    norms: of queries and values; a layer may lack them.
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

    def recognizes(self, layer: nn.Module) -> bool:
        tensors = layer.state_dict() if hasattr(layer, self.heads) else {}
        needed = {f"{projection}.weight" for projection in self.projections} | {*filter(None, [self.slice_table])}
        return needed <= tensors.keys() and any(self._tables_in(tensors))

    def sizes(self, tensors: Tensors) -> dict[str, int]:
        """The sizes of the table in a state dict of this family, by letter."""
        table, axes = self._tables_in(tensors)[0]
        return {"u": 1, **dict(zip(axes, tensors[table].shape, strict=True))}

    def views(self, tensors: Tensors, heads: int) -> dict[str, tuple[str, Tensor]]:
        """The name of a third-party tensor and our tensor as a view of it, by our name.

        Biases of projections have views too, although our projections have none.
        """
        table, letters = self._tables_in(tensors)[0]
        sizes = self.sizes(tensors)
        k, u = sizes["k"], sizes["u"]
        axes = sorted(range(len(letters)), key=lambda axis: letters[axis] in "ku")  # sides, k, u
        views = {"embedding.table": (table, tensors[table].permute(axes))}
        if self.slice_table:
            slices = self.slice_table, tensors[self.slice_table].permute(2, 3, 0, 1)
            views = {"embedding.0.table": views["embedding.table"], "embedding.1.table": slices}
        for name, theirs in (("position_bias", table), ("slice_bias", self.slice_table)):
            bias = f"{theirs.rpartition('.')[0]}.bias"  # of the convolution with the table
            if bias in tensors:
                views[name] = bias, tensors[bias]
        rows = [slice(None)] * 3
        if len(set(self.projections)) == 1:
            rows = [slice(heads * k), slice(heads * k, (heads + u) * k), slice((heads + u) * k, None)]
        outer = u if self.intra_depth_first else 1
        for ours, theirs, part, first in (
            ("query_projection", self.projections[0], rows[0], 1),
            ("key_projection", self.projections[1], rows[1], outer),
            ("value_projection", self.projections[2], rows[2], outer),
            ("query_norm", self.norms[0], slice(None), 1),
            ("value_norm", self.norms[1], slice(None), outer),
        ):
            for name, x in tensors.items():
                if name.startswith(f"{theirs}."):
                    # channels are (first, ..), and (.., first) in ours; num_batches_tracked has none
                    view = x[part].unflatten(0, (first, -1)).transpose(0, 1) if x.ndim else x
                    views[f"{ours}{name.removeprefix(theirs)}"] = name, view
        return views

    def _tables_in(self, tensors: Tensors) -> list[tuple[str, str]]:
        return [(name, axes) for name, axes in self.tables if name in tensors and tensors[name].ndim == len(axes)]


@dataclass(frozen=True)
class Origin:
    """What an adopted layer was, to convert it back.

    shapes: of the layer's tensors. foreign_shapes: of the third-party tensors. biases: those that
    our layer lacks, by our names.
    """

    family: Family
    heads: int
    shapes: Shapes
    foreign_shapes: Shapes
    biases: Tensors


def convert(layer: Any, family: Family) -> GridLambdaLayer:
    """A layer of this package with the weights, norms, modes, dtypes and device of another layer.

    Our projections have no biases. Those of queries and values are folded into the running means of
    the batch norms after them; that of keys has no effect, because softmax over positions is
    invariant to it. The bias along slices is added to the position bias.

    Raises InputError, or another exception, if the tensors are not those of a lambda layer.
    """
    tensors, heads = layer.state_dict(), int(getattr(layer, family.heads))
    views = family.views(tensors, heads)
    if unknown := tensors.keys() - {theirs for theirs, _ in views.values()}:
        names = ", ".join(sorted(unknown))
        raise InputError(f"it has tensors that lambda layers do not have: {names}")
    ours = {name: view.clone(memory_format=torch.contiguous_format) for name, (_, view) in views.items()}
    _add_biases(ours, -1)
    converted = _build(layer, family, ours).train(layer.training)
    modules = dict(layer.named_modules())
    for name, theirs in zip(("query_norm", "value_norm"), family.norms, strict=True):
        norm: Any = copy.deepcopy(modules.get(theirs, nn.Identity()))
        if family.slice_table and isinstance(modules.get(theirs), nn.BatchNorm2d):
            norm.__class__ = nn.BatchNorm3d  # the same norm for volumes
        setattr(converted, name, norm)
    shapes = _shapes(converted)
    for name, shape in shapes.items():
        if ours[name].numel() != math.prod(shape):
            raise InputError(f"its {views[name][0]} does not fit {name}, {shape}")
    converted.load_state_dict({name: ours[name].view(shape) for name, shape in shapes.items()}, assign=True)
    trained = {name for name, parameter in layer.named_parameters() if parameter.requires_grad}
    for name, parameter in converted.named_parameters():
        parameter.requires_grad_(views[name][0] in trained)
    biases = {name: ours[name] for name in ours.keys() - shapes.keys()}
    converted.origin = Origin(family, heads, shapes, _shapes(layer), biases)
    return converted


def convert_back(layer: GridLambdaLayer) -> Tensors:
    """The state dict of a converted layer with the third-party keys and shapes.

    Raises InputError if the layer has other tensors than when it was converted.
    """
    origin, shapes = layer.origin, _shapes(layer)
    assert isinstance(origin, Origin)
    changed = {name for name, _ in shapes.items() ^ origin.shapes.items()}
    if changed := {name for name in changed if not name.endswith("num_batches_tracked")}:
        names = ", ".join(sorted(changed))
        raise InputError(f"it has changed since it was converted, in the shape of {names}")
    ours = dict(layer.state_dict())
    ours |= {name: bias.to(ours["value_projection.weight"]) for name, bias in origin.biases.items()}
    _add_biases(ours, 1)
    return foreign_tensors(ours, origin.family, origin.heads, origin.foreign_shapes)


def foreign_tensors(ours: Tensors, family: Family, heads: int, shapes: Shapes) -> Tensors:
    """Third-party tensors of these shapes that have our tensors as views, and 0 elsewhere."""
    empty = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    foreign = {}
    for name, (theirs, _) in family.views(empty, heads).items():
        like = ours.get(name, ours["value_projection.weight"])
        is_counter = theirs.endswith("num_batches_tracked")  # which frozen norms do not have
        foreign[theirs] = like.new_zeros(shapes[theirs], dtype=torch.int64 if is_counter else None)
    for name, (_, view) in family.views(foreign, heads).items():
        if name in ours:
            view.copy_(ours[name].view(view.shape))
    return {name: foreign[name] for name in shapes}


def _shapes(layer: nn.Module) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}


def _add_biases(ours: Tensors, sign: int) -> None:
    """Add the biases that our layer lacks to running means and position bias."""
    for bias, total, factor in (
        ("query_projection.bias", "query_norm.running_mean", sign),
        ("value_projection.bias", "value_norm.running_mean", sign),
        ("slice_bias", "position_bias", -sign),
    ):
        if bias in ours:
            if total not in ours:
                raise InputError(f"its {bias} has no {total} to be added to")
            old = ours[total]
            ours[total] = old + factor * ours[bias].to(old).view(old.shape)


def _build(layer: Any, family: Family, ours: Tensors) -> GridLambdaLayer:
    """A layer of this package with the sizes of another, without norms, on the meta device."""
    sizes, heads = family.sizes(layer.state_dict()), int(getattr(layer, family.heads))
    weight = ours["value_projection.weight"]  # (v, u, d, 1..) or (v u, 1, d, 1..)
    dimensions, k, u = weight.ndim - 3, sizes["k"], sizes["u"]
    if dimensions not in _LAYERS:
        raise InputError("its projections are not convolutions")
    layer_type: type[GridLambdaLayer] = _LAYERS[dimensions]
    options: dict[str, Any]
    sides = tuple(sizes[letter] for letter in "yx" if letter in sizes)
    if "n" in sizes:
        options = {"embedding": DenseEmbedding(sizes["n"], sizes["m"], k, u, device="meta")}
    elif family.slice_table:
        layer_type = SlicesLambdaLayer
        scopes = (1, *sides), (ours["embedding.1.table"].shape[1], 1, 1)
        tables = [RelativeEmbedding(scope, k, u, device="meta") for scope in scopes]
        options = {"embedding": tables, "content": "slices", "slices": attrgetter(family.slices)(layer)}
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
        weight.shape[:2].numel() // u * heads,
        query_depth=k,
        heads=heads,
        intra_depth=u,
        position_bias="position_bias" in ours,
        batch_norm=False,
        device="meta",
        **options,
    )
    converted._owns_embedding = True
    return converted
