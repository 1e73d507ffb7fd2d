"""A third-party layer converted to a layer of this package, and its tensors converted back."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.adoption.family import Family
from lambdanets.adoption.layout import Layout, Origin, Rows, scatter, shapes_of
from lambdanets.layers import DenseEmbedding, LambdaLayer1d, LambdaLayer2d, LambdaLayer3d
from lambdanets.layers.lambda_layer import GridLambdaLayer

_LAYERS = {1: LambdaLayer1d, 2: LambdaLayer2d, 3: LambdaLayer3d}
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_NORMS = {"query": "query_norm", "value": "value_norm"}


class CannotConvert(ValueError):  # noqa: N818 - a reason, which the caller puts into a sentence
    """Why a layer cannot be converted."""


def convert(layer: nn.Module, family: Family) -> GridLambdaLayer:
    """A layer of this package with the weights, norms, modes, dtypes and devices of a third-party layer.

    Our projections have no biases. The query and value biases are folded into the running means of the batch norms that
    follow; the key bias has no effect, because softmax over positions is invariant to it. `origin` keeps the biases, to
    convert back. Raises CannotConvert with the reason.
    """
    state, shapes, heads = dict(layer.state_dict()), shapes_of(layer), family.heads(layer)
    layout = family.layout(shapes, heads)
    for rows in (layout.queries, layout.keys, layout.values):
        _check_projection(layer, rows)
    sources, biases = layout.sources(shapes), layout.biases(shapes)
    unused = shapes.keys() - {source.name for source in (*sources.values(), *biases.values())}
    if unused:
        raise CannotConvert(f"it has tensors that lambda layers do not have: {', '.join(sorted(unused))}")
    converted = _build(layer, layout, family.pool(layer))
    parameters = dict(layer.named_parameters())
    for name, source in sources.items():
        if not name.startswith(("query_norm.", "value_norm.")):
            if source.name not in parameters:
                raise CannotConvert(f"its {source.name} is not a parameter")
            tensor = source.pick(parameters[source.name].detach()).clone(memory_format=torch.contiguous_format)
            _assign(converted, name, nn.Parameter(tensor, parameters[source.name].requires_grad))
    for ours, norm in zip(("query_norm", "value_norm"), _norms(layer, layout), strict=True):
        if norm is not None:
            norm = copy.deepcopy(norm)
            for name, tensor in norm.state_dict().items():
                tensor.copy_(sources[f"{ours}.{name}"].pick(tensor.clone()))
            setattr(converted, ours, norm)
    _fold_biases(converted, {name: source.pick(state[source.name]) for name, source in biases.items()})
    original_biases = {source.name: state[source.name].clone() for source in biases.values()}
    converted.origin = Origin(family.name, heads, shapes, original_biases)
    return converted


def convert_back(layer: GridLambdaLayer, family: Family) -> dict[str, Tensor]:
    """The state dict of a converted layer with the third-party keys and shapes. Raises CannotConvert with a reason."""
    origin = layer.origin
    assert isinstance(origin, Origin)
    layout, shapes = family.layout(origin.shapes, origin.heads), origin.shapes
    sources = layout.sources(shapes)
    tensors = {name: tensor.detach() for name, tensor in layer.state_dict().items()}
    if tensors.keys() != sources.keys():
        changed = ", ".join(sorted(tensors.keys() ^ sources.keys()))
        raise CannotConvert(f"its state dict has other keys than when it was converted: {changed}")
    for name, source in sources.items():
        adopted = tuple(source.pick(torch.empty(shapes[source.name], device="meta")).shape)
        if adopted != tensors[name].shape:
            raise CannotConvert(
                f"{name} had the shape {adopted} when it was converted, and now has {tuple(tensors[name].shape)}"
            )
    biases = {name: bias.to(tensors["value_projection.weight"]) for name, bias in origin.biases.items()}
    for name, source in layout.biases(shapes).items():
        mean = f"{_NORMS.get(name)}.running_mean"
        if mean in tensors:
            tensors[mean] = tensors[mean] + source.pick(biases[source.name]).to(tensors[mean])
    foreign = scatter(sources, tensors, shapes) | biases
    return {name: foreign[name] for name in shapes}


def _check_projection(layer: nn.Module, rows: Rows) -> None:
    """Raise CannotConvert unless the projection is a 1x1 convolution."""
    projection: Any = layer.get_submodule(rows.projection)
    if type(projection) not in _CONVOLUTIONS:
        raise CannotConvert(f"its projection {rows.projection} is a {type(projection).__name__}, not a convolution")
    if {*projection.kernel_size, *projection.stride, projection.groups} != {1} or any(projection.padding):
        raise CannotConvert(f"its projection {rows.projection} is not a 1x1 convolution of stride 1")


def _build(layer: nn.Module, layout: Layout, pool: Any) -> GridLambdaLayer:
    """Build our layer for a layout, on the meta device."""
    shapes = shapes_of(layer)
    weight = shapes[f"{layout.values.projection}.weight"]
    table = layout.table.pick(torch.empty(shapes[layout.table.name], device="meta"))
    options: dict[str, Any] = {"scope": tuple(table.shape[: layout.dimensions])}
    if layout.dense:
        positions = table.shape[0]
        embedding = DenseEmbedding(positions, positions, layout.query_depth, layout.intra_depth, device="meta")
        options = {"embedding": embedding}
    if pool is not None:
        if type(pool) not in _POOLS:
            raise CannotConvert(f"its pooling is a {type(pool).__name__}, not average pooling")
        stride = pool.stride if isinstance(pool.stride, int) else pool.stride[0]
        options |= {"pool": _with_ceil_mode(pool), "stride": stride}
    has_norms = [norm is not None for norm in _norms(layer, layout)]
    if any(has_norms) != all(has_norms):
        raise CannotConvert("only one of its queries and values is normalized")
    converted = _LAYERS[layout.dimensions](
        weight[1],
        layout.values.count // layout.intra_depth * layout.heads,
        query_depth=layout.query_depth,
        heads=layout.heads,
        intra_depth=layout.intra_depth,
        position_bias=bool(layout.position_bias),
        batch_norm=all(has_norms),
        device="meta",
        **options,
    )
    converted._owns_embedding = True
    return converted.train(layer.training)


def _norms(layer: nn.Module, layout: Layout) -> list[nn.Module | None]:
    """The modules that normalize queries and values; None for a missing one."""
    modules = dict(layer.named_modules())
    return [modules.get(name) for name in layout.norms]


def _with_ceil_mode(pool: Any) -> nn.Module:
    """A copy of an average pooling; with ceil_mode if its windows do not overlap, to support odd sides."""
    pool = copy.deepcopy(pool)
    if pool.kernel_size == pool.stride and not _nonzero(pool.padding):
        pool.ceil_mode, pool.count_include_pad = True, False
    return pool


def _nonzero(sizes: int | tuple[int, ...]) -> bool:
    return bool(sizes) if isinstance(sizes, int) else any(sizes)


def _assign(layer: nn.Module, name: str, parameter: nn.Parameter) -> None:
    module, _, leaf = name.rpartition(".")
    owner = layer.get_submodule(module)
    expected = getattr(owner, leaf).shape
    if expected != parameter.shape:
        raise CannotConvert(f"{name} would be {tuple(parameter.shape)}, not {tuple(expected)}")
    setattr(owner, leaf, parameter)


def _fold_biases(layer: GridLambdaLayer, biases: dict[str, Tensor]) -> None:
    """Fold the query and value biases into the running means of the batch norms, by subtracting them."""
    for name, bias in biases.items():
        if name not in _NORMS:
            continue
        norm: Any = getattr(layer, _NORMS[name])
        if not hasattr(norm, "running_mean"):
            raise CannotConvert(f"its {name} projection has a bias and no batch norm after it")
        if norm.running_mean is not None:
            norm.running_mean -= bias.to(norm.running_mean)
