"""Benchmark of the models in the paper's tables, each at the image size of its row."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lambdanets_lab.benchmark.layer import select_candidates
from lambdanets_lab.benchmark.measurement import Case, Prepared
from lambdanets_lab.benchmark.model import prepare_network
from lambdanets_lab.benchmark.options import TABLE_PASSES, Tables
from lambdanets_lab.paper_models import PAPER_MODELS, ModelSpec

NAMES = [row for table in TABLE_PASSES for row in PAPER_MODELS[table]]


def baseline_row(table: str) -> str:
    """Return the row that the speeds of a table are compared with."""
    return "lambda layer" if table == "4" else next(iter(PAPER_MODELS[table]))


def make_cases(options: Tables, device: torch.device, rows: Sequence[Any] = ()) -> list[Case]:
    """Make one case per table and pass, which compares the table's rows."""
    passes = ((table, phase) for table in options.tables for phase in TABLE_PASSES[table] if phase in options.passes)
    cases = (_case(options, device, table, phase) for table, phase in passes)
    return [case for case in cases if case.candidates]


def _case(options: Tables, device: torch.device, table: str, phase: str) -> Case:
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
    candidates = select_candidates(builders, options.candidates)
    return Case({"table": table, "pass": phase}, candidates, baseline_row(table))
