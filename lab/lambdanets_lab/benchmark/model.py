"""Benchmarks of networks: ResNet-50 with lambda layers in some stages, ours and others', and the paper's models."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.layers import LambdaLayer2d
from lambdanets.models import create_model
from lambdanets_lab.benchmark.layer import OURS, select
from lambdanets_lab.benchmark.measurement import Case, Prepared
from lambdanets_lab.benchmark.options import TABLE_PASSES, Model, Tables
from lambdanets_lab.benchmark.peers import PEERS, build_peer
from lambdanets_lab.paper_models import PAPER_MODELS, ModelSpec

PLAIN = "resnet50"
NAMES = [PLAIN, OURS, *PEERS]
TABLE_ROWS = [row for table in TABLE_PASSES for row in PAPER_MODELS[table]]


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
    return Case({"image_size": options.image_size, "pass": phase}, select(builders, selected), PLAIN)


def baseline_row(table: str) -> str:
    """Return the row that the speeds of a table are compared with."""
    return "lambda layer" if table == "4" else next(iter(PAPER_MODELS[table]))


def make_table_cases(options: Tables, device: torch.device, rows: Sequence[Any] = ()) -> list[Case]:
    """Make one case per table and pass, which compares the table's rows."""
    passes = ((table, phase) for table in options.tables for phase in TABLE_PASSES[table] if phase in options.passes)
    cases = (_table_case(options, device, table, phase) for table, phase in passes)
    return [case for case in cases if case.candidates]


def _table_case(options: Tables, device: torch.device, table: str, phase: str) -> Case:
    training = phase == "training"
    dtype = getattr(torch, options.dtype)

    @functools.cache
    def model(spec: ModelSpec) -> nn.Module:
        torch.manual_seed(options.seed)
        return spec.create(str(device)).to(dtype).train(training)

    def prepare(spec: ModelSpec) -> Prepared:
        side = options.image_size or spec.image_size
        if options.image_size and spec.name.startswith("vit_"):  # vision transformers need it as an argument
            spec = replace(spec, overrides=spec.overrides | {"img_size": options.image_size})
        # rows that differ only in their image size share a model
        images = torch.randn(options.batch_size, 3, side, side, device=device, dtype=dtype)
        return prepare_network(model(replace(spec, image_size=0)), images)

    builders: dict[str, Callable[[], Prepared]] = {
        row: functools.partial(prepare, spec) for row, spec in PAPER_MODELS[table].items()
    }
    candidates = select(builders, options.candidates)
    return Case({"table": table, "pass": phase}, candidates, baseline_row(table))


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

    return Prepared(run, release)


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
