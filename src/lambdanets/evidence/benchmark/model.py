"""ResNet-50 with lambda layers in some of its stages: ours, and the peers' layers with the same weights."""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.evidence.benchmark.layer import OURS, chosen
from lambdanets.evidence.benchmark.options import Model
from lambdanets.evidence.benchmark.peers import PEERS, build_peer
from lambdanets.evidence.benchmark.race import Case, Prepared, prepare_module
from lambdanets.evidence.benchmark.reference import Error, Expected, expected_of, plain_copy
from lambdanets.layers import LambdaLayer2d
from lambdanets.models import create_model

PLAIN = "resnet50"
NAMES = [PLAIN, OURS, *PEERS]

# The layer in the middle of each block, which a pattern chooses.
LAYERS = [f"layer{stage}.{block}.conv2" for stage, blocks in enumerate((3, 4, 6, 3), 1) for block in range(blocks)]


def cases(options: Model, device: torch.device, rows: Sequence[Any] = ()) -> list[Case]:
    """A case for each pass, because every network is relative to plain ResNet-50 in the same pass."""
    return [_case(options, device, name) for name in options.passes]


def _case(options: Model, device: torch.device, name: str) -> Case:
    dtype = getattr(torch, options.dtype)
    training = name == "training"
    overrides: dict[str, Any] = {"scope": options.scope, "algorithm": options.algorithm}

    @functools.cache
    def inputs() -> tuple[Tensor, Tensor | None]:
        torch.manual_seed(options.seed + 1)
        images = torch.randn(options.batch_size, 3, options.image_size, options.image_size)
        gradient = torch.randn(options.batch_size, 1000)
        return images.to(device, dtype), gradient.to(device, dtype) if training else None

    @functools.cache
    def network(pattern: str | None) -> nn.Module:
        torch.manual_seed(options.seed)
        # a residual branch that starts at zero would hide what is in it from the check
        made: dict[str, Any] = {"zero_init_last": False}
        made |= {} if pattern is None else overrides | {"pattern": pattern}
        model = create_model(PLAIN if pattern is None else "resnet50_lambda", **made).to(device)
        if not training:
            calibrate(model, inputs()[0].float())
        return model.to(dtype).train(training)

    @functools.cache
    def expected(pattern: str | None) -> dict[str, tuple[Tensor, Tensor | None, Expected]]:
        """For each layer in the middle of a block an input and gradient that it meets, and what it must give."""
        plain = plain_copy(network(pattern))
        met = _met_by_layers(copy.deepcopy(plain).to(dtype), *inputs())
        return {
            path: (x, gradient, expected_of(plain.get_submodule(path), x, gradient))
            for path, (x, gradient) in met.items()
        }

    def prepare(pattern: str | None, peer: str | None = None) -> Prepared:
        model = copy.deepcopy(network(pattern))
        if peer is not None:
            for path, module in list(model.named_modules()):
                if isinstance(module, LambdaLayer2d):
                    model.set_submodule(path, build_peer(peer, module))
        return _prepare(model, *inputs(), functools.partial(expected, pattern))

    prepared: dict[str, Callable[[], Prepared]] = {PLAIN: functools.partial(prepare, None)}
    for pattern in options.patterns:
        prepared[f"{OURS} {pattern}"] = functools.partial(prepare, pattern)
        prepared |= {f"{peer} {pattern}": functools.partial(prepare, pattern, peer) for peer in PEERS}
    wanted = [entry for entry in prepared if entry == PLAIN or entry.split()[0] in (options.contestants or NAMES)]
    return Case({"image_size": options.image_size, "pass": name}, chosen(prepared, wanted))


def _prepare(
    model: nn.Module,
    images: Tensor,
    gradient: Tensor | None,
    expected: Callable[[], dict[str, tuple[Tensor, Tensor | None, Expected]]],
) -> Prepared:
    """The network as work; the worst errors of its layers as its errors.

    Layer by layer, because the output of a fresh network of 50 layers magnifies rounding errors up to its own size: a
    ReLU at its threshold goes one way in one dtype and the other in another.
    """
    whole = prepare_module(model, images, gradient, lambda: Expected({}, {}))

    def errors() -> dict[str, Error]:
        worst: dict[str, Error] = {}
        for path, (x, layer_gradient, of_layer) in expected().items():
            layer = prepare_module(model.get_submodule(path), x, layer_gradient, functools.partial(_same, of_layer))
            layer.work()
            for name, error in layer.errors().items():
                worst[name] = max(worst.get(name, error), error)
            layer.release()
        return worst

    return Prepared(whole.work, errors, whole.release)


def _same(expected: Expected) -> Expected:
    return expected


def _met_by_layers(
    model: nn.Module, images: Tensor, gradient: Tensor | None
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Input and, in training, gradient of the output of each layer in the middle of a block."""
    met: dict[str, tuple[Tensor, Tensor | None]] = {}

    def note(path: str, module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        x = arguments[0].detach().clone()
        met[path] = (x, None)
        if gradient is not None:
            output.register_hook(lambda of_output: met.update({path: (x, of_output.detach().clone())}))

    hooks = [model.get_submodule(path).register_forward_hook(functools.partial(note, path)) for path in LAYERS]
    prepare_module(model, images, gradient, lambda: Expected({}, {})).work()
    for hook in hooks:
        hook.remove()
    return met


def calibrate(model: nn.Module, images: Tensor) -> None:
    """Give batch norms the statistics of these images: with those of a fresh network activations leave all ranges."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
