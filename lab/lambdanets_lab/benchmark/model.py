"""Benchmarks of networks: ResNet-50 with lambda layers in some stages, ours and others', and the paper's models."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from lambdanets.layers import LambdaLayer2d
from lambdanets_lab.benchmark.layer import OURS, check_layer
from lambdanets_lab.benchmark.measurement import Case, Prepared
from lambdanets_lab.benchmark.options import TABLE_PASSES, Model, Tables
from lambdanets_lab.benchmark.peers import PEERS, build_peer
from lambdanets_lab.paper_models import PAPER_MODELS, ModelSpec

PLAIN = "resnet50"
NAMES = [PLAIN, OURS, *PEERS]
TABLE_ROWS = [row for table in TABLE_PASSES for row in PAPER_MODELS[table]]


Network = tuple[ModelSpec, str | None]  # and the package whose lambda layers replace ours


def make_cases(options: Model, device: torch.device, rows: Sequence[Any] = ()) -> list[Case]:
    """Make one case per pass, in which every network is compared with plain ResNet-50."""
    check_layer(64, scope=options.scope)
    networks: dict[str, Network] = {PLAIN: (ModelSpec(PLAIN), None)}
    for pattern in options.patterns:
        spec = ModelSpec("resnet50_lambda", {"scope": options.scope, "pattern": pattern})
        networks[f"{OURS} {pattern}"] = (spec, None)
        networks |= {f"{peer} {pattern}": (spec, peer) for peer in PEERS}
    names = (PLAIN, *(options.candidates or NAMES))
    selected = {name: network for name, network in networks.items() if name.split()[0] in names}
    return [
        _case(options, device, {"image_size": options.image_size, "pass": phase}, selected, PLAIN)
        for phase in options.passes
    ]


def baseline_row(table: str) -> str:
    """Return the row that the speeds of a table are compared with."""
    return "lambda layer" if table == "4" else next(iter(PAPER_MODELS[table]))


def make_table_cases(options: Tables, device: torch.device, rows: Sequence[Any] = ()) -> list[Case]:
    """Make one case per table and pass, which compares the table's rows."""
    cases = []
    for table in options.tables:
        names = options.candidates or PAPER_MODELS[table]
        networks: dict[str, Network] = {row: (spec, None) for row, spec in PAPER_MODELS[table].items() if row in names}
        cases += [
            _case(options, device, {"table": table, "pass": phase}, networks, baseline_row(table))
            for phase in TABLE_PASSES[table]
            if networks and phase in options.passes
        ]
    return cases


def _case(
    options: Model | Tables, device: torch.device, sizes: dict[str, Any], networks: dict[str, Network], baseline: str
) -> Case:
    training, dtype = sizes["pass"] == "training", getattr(torch, options.dtype)

    def make_images(side: int, count: int = options.batch_size) -> Tensor:
        torch.manual_seed(1)
        return torch.randn(count, 3, side, side).to(device)

    @functools.cache
    def model(spec: ModelSpec, peer: str | None) -> nn.Module:
        torch.manual_seed(0)
        network = spec.create(str(device))
        for name, module in list(network.named_modules()):
            if peer is not None and isinstance(module, LambdaLayer2d):
                network.set_submodule(name, build_peer(peer, module))
        if not training:
            # with the initial statistics, activations of random networks overflow; one image may have a map of 1 x 1
            update_bn([make_images(options.image_size or 224, max(2, options.batch_size))], network)
        return network.to(dtype).train(training)

    def prepare(spec: ModelSpec, peer: str | None) -> Prepared:
        side = options.image_size or spec.image_size
        if options.image_size and spec.name.startswith("vit_"):  # vision transformers need it as an argument
            spec = replace(spec, overrides=spec.overrides | {"img_size": side})
        # rows that differ only in their image size share a network
        network, images = model(replace(spec, image_size=0), peer), make_images(side).to(dtype)
        grad_output = torch.ones((), dtype=dtype, device=device) if training else None
        parameters = tuple(network.parameters())
        return Prepared(lambda x: network(x).sum(), (images,), grad_output, parameters)

    return Case(sizes, {name: functools.partial(prepare, *network) for name, network in networks.items()}, baseline)
