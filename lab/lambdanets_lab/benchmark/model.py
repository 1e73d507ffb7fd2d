"""Benchmark of ResNet-50 with lambda layers in some stages: ours, and other packages' with the same weights."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.layers import LambdaLayer2d
from lambdanets.models import create_model
from lambdanets_lab.benchmark.layer import OURS, select_candidates
from lambdanets_lab.benchmark.measurement import Case, Prepared
from lambdanets_lab.benchmark.options import Model
from lambdanets_lab.benchmark.peers import PEERS, build_peer

PLAIN = "resnet50"
NAMES = [PLAIN, OURS, *PEERS]


def make_cases(options: Model, device: torch.device, rows: Sequence[Any] = ()) -> list[Case]:
    """Make one case per pass, in which every network is compared with plain ResNet-50."""
    return [_case(options, device, phase) for phase in options.passes]


def _case(options: Model, device: torch.device, phase: str) -> Case:
    dtype = getattr(torch, options.dtype)
    training = phase == "training"
    overrides: dict[str, Any] = {"scope": options.scope, "algorithm": options.algorithm}

    @functools.cache
    def images() -> Tensor:
        torch.manual_seed(options.seed + 1)
        return torch.randn(options.batch_size, 3, options.image_size, options.image_size).to(device)

    def prepare(pattern: str | None, peer: str | None = None) -> Prepared:
        torch.manual_seed(options.seed)
        arguments = {} if pattern is None else overrides | {"pattern": pattern}
        model = create_model(PLAIN if pattern is None else "resnet50_lambda", **arguments)
        for name, module in list(model.named_modules()):
            if peer is not None and isinstance(module, LambdaLayer2d):
                model.set_submodule(name, build_peer(peer, module))
        model.to(device)
        if not training:
            set_batch_norm_statistics(model, images())
        return prepare_network(model.to(dtype).train(training), images().to(dtype))

    builders: dict[str, Callable[[], Prepared]] = {PLAIN: functools.partial(prepare, None)}
    for pattern in options.patterns:
        builders[f"{OURS} {pattern}"] = functools.partial(prepare, pattern)
        builders |= {f"{peer} {pattern}": functools.partial(prepare, pattern, peer) for peer in PEERS}
    selected = [entry for entry in builders if entry == PLAIN or entry.split()[0] in (options.candidates or NAMES)]
    return Case({"image_size": options.image_size, "pass": phase}, select_candidates(builders, selected), PLAIN)


def prepare_network(model: nn.Module, images: Tensor) -> Prepared:
    """Prepare the forward pass of a network, in training mode with the backward pass to its parameters."""

    def release() -> None:
        model.zero_grad(set_to_none=True)

    def run() -> None:
        release()
        with torch.set_grad_enabled(model.training):
            output = model(images)
        if model.training:
            output.sum().backward()

    return Prepared(run, dict, release)


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
