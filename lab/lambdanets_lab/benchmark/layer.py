"""Benchmark of single layers: our lambda layer, other packages' lambda layers, and the mixers."""

import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lambdanets.layers import LambdaLayer2d
from lambdanets.records import reraise_as_input_error
from lambdanets_lab.benchmark.measurement import Case, Prepared, Tensors
from lambdanets_lab.benchmark.options import Layer
from lambdanets_lab.benchmark.peers import PEERS, build_peer
from lambdanets_lab.mixers import MIXERS, option_names

OURS, CONVOLUTION = "lambdanets", "convolution"
DEFAULTS = [OURS, *PEERS, "local_attention", CONVOLUTION]
NAMES = [OURS, *PEERS, *MIXERS]


def make_cases(options: Layer, device: torch.device, rows: Sequence[Any] = ()) -> list[Case]:
    cases = itertools.product(options.shapes, options.scopes, options.passes)
    return [_case(options, device, *case) for case in cases]


def check_layer(dim: int, **options: Any) -> None:
    """Raise InputError unless our layer can have the options: it and its peers would be skipped."""
    with reraise_as_input_error(f"{OURS} cannot be built"), torch.device("meta"):
        LambdaLayer2d(dim, **options)


def _case(options: Layer, device: torch.device, shape: str, scope: int, phase: str) -> Case:
    height, width, dim = map(int, shape.split("x"))
    dtype = getattr(torch, options.dtype)
    training = phase == "training"
    known: dict[str, Any] = {"heads": options.heads, "scope": scope}
    names = options.candidates or DEFAULTS
    if not {OURS, *PEERS}.isdisjoint(names):
        check_layer(dim, query_depth=options.query_depth, **known)

    @functools.cache
    def layer() -> LambdaLayer2d:
        torch.manual_seed(0)
        ours = LambdaLayer2d(dim, query_depth=options.query_depth, **known)
        return ours.to(device, dtype).train(training)

    @functools.cache
    def inputs() -> tuple[Tensor, Tensor | None]:
        torch.manual_seed(1)
        x, grad_output = torch.randn(2, options.batch_size, dim, height, width).to(device, dtype)
        return x.requires_grad_(training), grad_output if training else None

    def compute_expected(module: nn.Module) -> Tensors:
        x, grad_output = inputs()
        x = x.detach().double().requires_grad_(training)
        grad_output = None if grad_output is None else grad_output.double()
        return Prepared(copy.deepcopy(module).double(), (x,), grad_output).run()

    @functools.cache
    def expected() -> Tensors:
        reference = copy.deepcopy(layer())
        reference.algorithm = "query_order"
        return compute_expected(reference)

    def prepare(name: str) -> Prepared:
        x, grad_output = inputs()
        if name in MIXERS:  # compared with itself in float64, the others with our layer
            torch.manual_seed(0)
            module = MIXERS[name](dim, **{option: known[option] for option in option_names(name) if option in known})
            module = module.to(device, dtype).train(training)
            reference: Callable[[], Tensors] = functools.partial(compute_expected, module)
        else:
            module, reference = layer() if name == OURS else build_peer(name, layer()), expected
        return Prepared(module, (x,), grad_output, tuple(module.parameters()), reference)

    sizes = {"shape": shape, "scope": scope, "pass": phase}
    return Case(sizes, {name: functools.partial(prepare, name) for name in NAMES if name in names}, OURS)
