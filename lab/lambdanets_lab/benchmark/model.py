"""Benchmark of ResNet-50 with lambda layers in some stages: ours, and other packages' with the same weights."""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.layers import LambdaLayer2d
from lambdanets.models import create_model
from lambdanets_lab.benchmark.layer import OURS, select_candidates
from lambdanets_lab.benchmark.measurement import Case, Prepared, prepare_module
from lambdanets_lab.benchmark.options import Model
from lambdanets_lab.benchmark.peers import PEERS, build_peer
from lambdanets_lab.benchmark.reference import Error, Expected, compute_expected, reference_copy

PLAIN = "resnet50"
NAMES = [PLAIN, OURS, *PEERS]

# The middle layer of each block: a 3x3 convolution or a lambda layer, depending on the pattern.
LAYERS = [f"layer{stage}.{block}.conv2" for stage, blocks in enumerate((3, 4, 6, 3), 1) for block in range(blocks)]


def make_cases(options: Model, device: torch.device, rows: Sequence[Any] = ()) -> list[Case]:
    """Make one case per pass, in which every network is compared with plain ResNet-50."""
    return [_case(options, device, phase) for phase in options.passes]


def _case(options: Model, device: torch.device, phase: str) -> Case:
    dtype = getattr(torch, options.dtype)
    training = phase == "training"
    overrides: dict[str, Any] = {"scope": options.scope, "algorithm": options.algorithm}

    @functools.cache
    def inputs() -> tuple[Tensor, Tensor | None]:
        torch.manual_seed(options.seed + 1)
        images = torch.randn(options.batch_size, 3, options.image_size, options.image_size)
        grad_output = torch.randn(options.batch_size, 1000)
        return images.to(device, dtype), grad_output.to(device, dtype) if training else None

    @functools.cache
    def network(pattern: str | None) -> nn.Module:
        torch.manual_seed(options.seed)
        # a zero-initialized residual branch would hide errors in it
        arguments: dict[str, Any] = {"zero_init_last": False}
        arguments |= {} if pattern is None else overrides | {"pattern": pattern}
        model = create_model(PLAIN if pattern is None else "resnet50_lambda", **arguments).to(device)
        if not training:
            set_batch_norm_statistics(model, inputs()[0].float())
        return model.to(dtype).train(training)

    @functools.cache
    def expected(pattern: str | None) -> dict[str, tuple[Tensor, Tensor | None, Expected]]:
        """Map each middle layer to its input and grad_output in the network, and the expected tensors."""
        reference = reference_copy(network(pattern))
        model = copy.deepcopy(reference).to(dtype)
        captured = capture_inputs(model, LAYERS, prepare_module(model, *inputs(), lambda: Expected({}, 0.0)).run)
        return {
            name: (x, grad_output, compute_expected(reference.get_submodule(name), x, grad_output))
            for name, (x, grad_output) in captured.items()
        }

    def prepare(pattern: str | None, peer: str | None = None) -> Prepared:
        model = copy.deepcopy(network(pattern))
        if peer is not None:
            for name, module in list(model.named_modules()):
                if isinstance(module, LambdaLayer2d):
                    model.set_submodule(name, build_peer(peer, module))
        return _prepare(model, *inputs(), functools.partial(expected, pattern))

    builders: dict[str, Callable[[], Prepared]] = {PLAIN: functools.partial(prepare, None)}
    for pattern in options.patterns:
        builders[f"{OURS} {pattern}"] = functools.partial(prepare, pattern)
        builders |= {f"{peer} {pattern}": functools.partial(prepare, pattern, peer) for peer in PEERS}
    selected = [entry for entry in builders if entry == PLAIN or entry.split()[0] in (options.candidates or NAMES)]
    return Case({"image_size": options.image_size, "pass": phase}, select_candidates(builders, selected), PLAIN)


def _prepare(
    model: nn.Module,
    images: Tensor,
    grad_output: Tensor | None,
    expected: Callable[[], dict[str, tuple[Tensor, Tensor | None, Expected]]],
) -> Prepared:
    """Prepare a network to be measured as a whole and verified layer by layer; errors are the maximum over the layers.

    The whole output cannot be verified: a randomly initialized network amplifies rounding errors up to the magnitude of
    its output, since a ReLU near 0 may be on in one dtype and off in another.
    """
    network = prepare_module(model, images, grad_output, lambda: Expected({}, 0.0))

    return Prepared(network.run, lambda: layer_errors(model, expected()), network.release)


def layer_errors(model: nn.Module, expected: Mapping[str, tuple[Tensor, Tensor | None, Expected]]) -> dict[str, Error]:
    """Return the largest error of each tensor over some layers of a network.

    expected: by the name of a layer, its input, the gradient of its output, and what it must compute from them.
    """

    def errors_of(name: str, x: Tensor, grad_output: Tensor | None, tensors: Expected) -> dict[str, Error]:
        layer = prepare_module(model.get_submodule(name), x, grad_output, lambda: tensors)
        layer.run()
        errors = layer.errors()
        layer.release()
        return errors

    worst: dict[str, Error] = {}
    for name, arguments in expected.items():
        for tensor, error in errors_of(name, *arguments).items():
            worst[tensor] = max(worst.get(tensor, error), error)
    return worst


def capture_inputs(
    model: nn.Module, layers: Iterable[str], run: Callable[[], object]
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Return the input of each layer in a run of the model and, if the run computes it, the gradient of its output."""
    captured: dict[str, tuple[Tensor, Tensor | None]] = {}

    def capture(name: str, module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        x = arguments[0].detach().clone()
        captured[name] = (x, None)
        if output.requires_grad:
            output.register_hook(lambda grad: captured.update({name: (x, grad.detach().clone())}))

    hooks = [model.get_submodule(name).register_forward_hook(functools.partial(capture, name)) for name in layers]
    run()
    for hook in hooks:
        hook.remove()
    return captured


def set_batch_norm_statistics(model: nn.Module, images: Tensor) -> None:
    """Set running statistics from the images; with the initial ones, activations of random networks overflow."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
