"""What the lambda layers of a network look at in one image."""

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torchvision.transforms.v2.functional import normalize

from lambdanets.data.coco.images import image_to_tensor
from lambdanets.errors import InputError, check_choice, nearest_hint
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.detector import Detector
from lambdanets.inference.loading import load
from lambdanets.inference.predictor import ImageInput, evaluation_mode
from lambdanets.inference.segmenter import Segmenter
from lambdanets.layers.base import LambdaBase, LambdaInputs
from lambdanets.models.unet import UNet
from lambdanets_lab.explain.attention import AttentionMap, compute_attention_map, shared_keys
from lambdanets_lab.explain.view import View, is_within, view_of_classifier, view_of_detector, view_of_network


class _Stop(Exception):  # noqa: N818
    """Ends a forward pass early."""


@dataclass(frozen=True, eq=False)
class _Call:
    """The first call of a lambda layer in the forward pass: its arguments and its output."""

    layer: LambdaBase
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor

    @functools.cached_property
    @torch.no_grad()
    def inputs(self) -> LambdaInputs:
        with evaluation_mode(self.layer):
            return self.layer.prepare(*self.args, **self.kwargs)

    @property
    def sides(self) -> tuple[int, ...]:
        return tuple(self.output.shape[1:2] if self.layer.is_token_layer else self.output.shape[2:])


@dataclass(frozen=True, eq=False, repr=False)
class ReceptiveField:
    """The effective receptive field of one position of a module's output.

    gradient: (S_1..S_D), the absolute gradient of the sum over the channels at this position with respect to the pixels
        of the network's input, summed over their channels.
    box: (start, stop) of each axis of the smallest box with all gradients, the theoretical receptive field; the
        whole input as soon as one layer before is global, such as squeeze-and-excitation or the content term.
        Gradients below 1e-5 of the largest are rounding errors.
    view: the part of the image that the gradient covers; None if the input is not an image.
    """

    module: str
    at: tuple[int, ...]
    gradient: Tensor
    view: View | None

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        nonzero = (self.gradient > 1e-5 * self.gradient.max()).nonzero()
        if not len(nonzero):
            return ((0, 0),) * self.gradient.ndim
        return tuple((int(low), int(high) + 1) for low, high in zip(nonzero.amin(0), nonzero.amax(0), strict=True))

    def area(self, fraction: float = 0.9) -> float:
        """Return the fraction of the input's pixels that have this fraction of the gradient, the largest first."""
        descending = self.gradient.flatten().double().sort(descending=True).values.cumsum(0)
        if not descending[-1]:
            return 0.0
        return int((descending < fraction * descending[-1]).sum() + 1) / self.gradient.numel()

    def __repr__(self) -> str:
        return f"ReceptiveField({self.module!r}, at={self.at}, box={self.box}, 90% in {self.area():.1%})"


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What the lambda layers of a network look at in one image; returned by `explain`.

    model: the network. inputs: arguments of its forward pass. output: its output.
    view: the part of the image that the network sees; None if `at` is a position of the output.

    `layer` arguments are names in `layers`; the last one by default. `at` is a position (row, column) in pixels of the
    image, the center by default; the position of the layer's map that contains it is used. For layers on tokens, and if
    the input has other dimensions than the map, `at` is a position of the layer's output instead.
    """

    model: nn.Module
    inputs: tuple[Any, ...]
    output: Any
    view: View | None
    calls: dict[str, _Call] = field(repr=False)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the lambda layers, in the order of the forward pass."""
        return tuple(self.calls)

    def attention_map(self, layer: str | None = None, at: tuple[int, ...] | int | None = None) -> AttentionMap:
        """Return the exact weights, by content and by position, of all context positions for one output position.

        Cost: for each of the two terms, that of the layer's interaction, and h times that of its gradient.
        """
        name, call = self._call(layer)
        return compute_attention_map(call.layer, call.inputs, self._position(at, call.sides), name)

    @torch.no_grad()
    def position_share(self, layer: str | None = None) -> Tensor:
        """Return the share of the position term in the output, in [0, 1], at each output position (S'_1..S'_D).

        |y_p| / (|y_c| + |y_p|), with norms over all channels; 0 where both are 0, as at padding.
        Cost: that of the projections and the content term.
        """
        _, call = self._call(layer)
        lambda_layer, inputs = call.layer, call.inputs
        content = torch.zeros_like(call.output[:1])
        if inputs.keys is not None:
            term = lambda_layer.pair_terms(inputs._replace(embeddings=None))
            content = lambda_layer.finish(term, inputs)[:1]
        has_position = inputs.embeddings is not None or bool(inputs.tables)
        position = call.output[:1] - content if has_position else torch.zeros_like(content)
        axis = 2 if lambda_layer.is_token_layer else 1
        norms = [term.float().norm(dim=axis)[0] for term in (content, position)]
        return norms[1] / (norms[0] + norms[1]).clamp(min=torch.finfo(torch.float32).tiny)

    def keys(self, layer: str | None = None) -> Tensor:
        """Return the k normalized keys as maps, ([h,] S_1..S_D, k[, u]): what the content lambda summarizes.

        A causal layer and a mask of pairs normalize keys over the context of each query; here it is all of the context.
        """
        name, call = self._call(layer)
        if call.inputs.keys is None:
            raise InputError(f"layer must have a content term, got {name}, which has content=False")
        return shared_keys(call.layer, call.inputs)

    def receptive_field(self, module: str | None = None, at: tuple[int, ...] | int | None = None) -> ReceptiveField:
        """Return the effective receptive field of one position in the output of any module, such as "layer3".

        Cost: a forward pass up to the module, and its gradient.
        """
        module = self._call(None)[0] if module is None else module
        modules = {name or type(part).__name__: part for name, part in self.model.named_modules()}
        if module not in modules:
            raise InputError(f"module must be the name of a module, got {module!r}{nearest_hint(module, modules)}")
        is_detector = isinstance(self.inputs[0], list)
        network_input = (self.inputs[0][0] if is_detector else self.inputs[0]).detach().clone().requires_grad_()
        inputs = ([network_input],) if is_detector else (network_input, *self.inputs[1:])
        output = _run_until(self.model, inputs, modules[module], module)
        has_token_layers = any(call.layer.is_token_layer for call in self.calls.values())
        is_tokens = getattr(modules[module], "is_token_layer", has_token_layers and output.ndim == 3)
        output = output.movedim(-1, 1) if is_tokens else output
        position = self._position(at, tuple(output.shape[2:]))
        total = output[0].movedim(0, -1)[position].sum()
        (gradient,) = torch.autograd.grad(total, network_input)
        gradient = gradient.abs() if is_detector else gradient[0].abs()
        gradient = gradient.sum(-1 if is_tokens and gradient.ndim == 2 else 0)
        is_padded = is_detector or isinstance(self.model, UNet)  # by the network itself
        view = View.whole(tuple(gradient.shape)) if is_padded else self.view
        return ReceptiveField(module, position, gradient, view)

    def _call(self, layer: str | None) -> tuple[str, _Call]:
        name = self.layers[-1] if layer is None else layer
        check_choice("layer", name, self.layers)
        return name, self.calls[name]

    def _position(self, at: tuple[int, ...] | int | None, sides: tuple[int, ...]) -> tuple[int, ...]:
        """Return the position of a map with these sides that contains `at`."""
        at = (at,) if isinstance(at, int) else at
        if self.view is not None and len(self.view.image_size) == len(sides):
            return self.view.position(at, sides)
        if at is None:
            return tuple(side // 2 for side in sides)
        if not is_within(at, sides):
            raise InputError(f"at must be a position of the layer's output of size {sides}, got {tuple(at)}")
        return tuple(at)

    def __repr__(self) -> str:
        return f"Explanation({len(self.layers)} lambda layers)"


def explain(
    model: str | os.PathLike[str] | Classifier | Detector | Segmenter | nn.Module,
    image: ImageInput | Tensor | tuple[Any, ...],
    *,
    channel: int | None = None,
    stretch: bool | None = None,
) -> Explanation:
    """Run a model on one image and return what its lambda layers look at.

    Args:
        model: a run folder or weight file, a predictor from `load`, or a network. It runs in evaluation mode, without
            tiles.
        image: an image as in `Classifier.predict`. For a network, its preprocessed input: a tensor with a batch axis,
            of which the first example is explained, or a tuple of the arguments of its forward pass.
        channel: as in `Classifier.predict`.
        stretch: False for an image whose intensities have been stretched; by default as in the model card.

    Raises InputError for an invalid argument, and for a network without lambda layers.
    """
    loaded = load(model) if isinstance(model, str | os.PathLike) else model
    if isinstance(loaded, nn.Module):
        inputs = image if isinstance(image, tuple) else (image,)
        if not inputs or not isinstance(inputs[0], Tensor) or inputs[0].ndim < 3:
            raise InputError("image must be a tensor with a batch axis, or a tuple of tensors, for a network")
        network = getattr(loaded, "_orig_mod", loaded)  # of torch.compile
        view = view_of_network(network, tuple(inputs[0].shape[2:])) if inputs[0].ndim > 3 else None
    elif isinstance(loaded, Classifier | Detector | Segmenter):
        images = list(loaded.decode(image, channel=channel, stretch=stretch))
        if len(images) != 1:
            raise InputError(f"image must be one image, got {len(images)}")
        (pil_image,), network = images, loaded.model
        parameter = next(network.parameters())  # has the device and the dtype
        if isinstance(loaded, Classifier):
            preprocessing = loaded.card.preprocessing
            inputs = (preprocessing.transform()(pil_image)[None].to(parameter),)
            view = view_of_classifier(preprocessing, pil_image.size)
        elif isinstance(loaded, Segmenter):
            images = normalize(image_to_tensor(pil_image)[None], [*loaded.card.mean], [*loaded.card.std])
            inputs, view = (images.to(parameter),), view_of_network(network, tuple(images.shape[2:]))
        else:
            inputs = ([image_to_tensor(pil_image).to(parameter)],)
            view = view_of_detector(loaded.model, inputs[0][0])
    else:
        raise InputError(f"model must be a path, a predictor from load, or a network, got {type(loaded).__name__}")
    output, calls = _run(network, inputs)
    if not calls:
        raise InputError(f"model must have lambda layers, got {type(network).__name__} without one")
    return Explanation(network, inputs, output, view, calls)


def attention_map(
    model: str | os.PathLike[str] | Classifier | Detector | Segmenter | nn.Module,
    image: ImageInput | Tensor | tuple[Any, ...],
    *,
    layer: str | None = None,
    at: tuple[int, ...] | int | None = None,
) -> AttentionMap:
    """Return the exact attention map of one position of a lambda layer: `explain(model, image).attention_map(..)`.

    Args:
        layer: its name; the last lambda layer by default.
        at: (row, column) in pixels of the image; its center by default.

    See `Explanation` and `AttentionMap`.
    """
    return explain(model, image).attention_map(layer, at)


def _run(network: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, dict[str, _Call]]:
    """Return the output of a network in evaluation mode, and the first call of each lambda layer by name."""
    calls: dict[str, _Call] = {}

    def record(name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        assert isinstance(layer, LambdaBase)
        if name not in calls:  # cloned, because in-place activations overwrite them
            calls[name] = _Call(layer, *tree_map_only(Tensor, Tensor.clone, (args, kwargs, output)))

    with contextlib.ExitStack() as stack, torch.no_grad(), _eager(network):
        for name, module in network.named_modules():
            if isinstance(module, LambdaBase):
                hook = functools.partial(record, name or type(module).__name__)
                stack.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        output = network(*inputs)
    return output, calls


def _run_until(network: nn.Module, inputs: tuple[Any, ...], module: nn.Module, name: str) -> Tensor:
    """Run a network in evaluation mode, with autograd, up to a module, and return the output of the module."""
    outputs: list[Tensor] = []

    def stop(_: nn.Module, __: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or output.ndim < 3:
            raise InputError(f"module must return maps (b, c, S_1..S_D) or tokens (b, n, c), got {name!r}")
        outputs.append(output)
        raise _Stop

    with module.register_forward_hook(stop), torch.enable_grad(), contextlib.suppress(_Stop), _eager(network):
        network(*inputs)
    if not outputs:
        raise InputError(f"module must be used in the forward pass, got {name!r}")
    return outputs[0]


@contextlib.contextmanager
def _eager(network: nn.Module) -> Iterator[None]:
    """Evaluation mode, and eager mode of compiled networks, in which no hook would run."""
    with torch.compiler.set_stance("force_eager"), evaluation_mode(network):
        yield
