"""The interaction in graphs of make_fx and torch.compile; test_compiled_operations.py compares it with eager mode."""

import subprocess
import sys

import pytest
import torch
from interactions import assert_all_close, make_inputs
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

from all_pairs import all_pairs, in_turn
from lambdanets import LambdaLayer2d
from lambdanets.ops import position_interaction
from lambdanets.ops.position.torch_compile import position_interaction_operator

# grid, sides, u, causal
CASES = {
    "plane": ((3, 4), (3, 5), 1, False),
    "intra-depth": ((5, 4), (3, 3), 2, False),
    "causal, larger table": ((3, 4), (9, 9), 1, True),
    "causal sequence": ((9,), (5,), 1, True),
    "volume": ((2, 2, 3), (3, 3, 3), 1, False),
}


CONTENT = (True, False)
OUTPUT = [True, False, False, False, False]
NEEDS = ([False, True, True, True, True], [False, False, True, False, False])


@pytest.mark.parametrize(("case", "algorithm", "has_content"), all_pairs([*CASES], ["auto", "row_transform"], CONTENT))
def test_operator_passes_opcheck(case, algorithm, has_content):
    grid, sides, u, causal = CASES[case]
    inputs = [x.requires_grad_() for x in make_inputs(grid, sides, u, heads=2, k=2, v=3)]
    content = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True) if has_content else None
    opcheck(position_interaction_operator, (None, *inputs, content, grid, causal, algorithm, OUTPUT))


@pytest.mark.parametrize(("content", "needs"), [*zip((torch.randn(2, 2, 3), None), NEEDS, strict=True)])
def test_operator_passes_opcheck_in_float16(content, needs):
    queries, table, values = make_inputs((3, 4), (3, 5), 1, heads=2, k=2, v=3, dtype=torch.float16)
    factors = (queries, table.float(), values, content)
    for grad_output, needed in ((None, OUTPUT), (torch.randn(2, 2, 12, 3), needs)):
        opcheck(position_interaction_operator, (grad_output, *factors, (3, 4), False, "auto", needed))


@pytest.mark.parametrize(("case", "needs"), [*in_turn(CASES.values(), NEEDS)])
def test_gradients_of_the_operator_pass_opcheck(case, needs):
    grid, sides, u, causal = case
    inputs = make_inputs(grid, sides, u, heads=2, k=2, v=3)
    grad_output = torch.randn(2, 2, inputs[0].shape[2], 3, dtype=torch.float64)
    content = torch.randn(2, 2, 3, dtype=torch.float64)
    opcheck(position_interaction_operator, (grad_output, *inputs, content, grid, causal, "auto", needs))


@pytest.mark.parametrize("tracing_mode", ["real", "fake"])
def test_make_fx_records_the_interaction_and_its_derivatives(tracing_mode):
    inputs = [x.requires_grad_() for x in make_inputs((3, 4), (3, 5), 1, heads=2, k=2, v=3)]

    def function(q, r, v):
        (gradient,) = torch.autograd.grad(position_interaction(q, r, v, (3, 4)).square().sum(), q, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), (q, r, v))

    traced = make_fx(function, tracing_mode=tracing_mode)(*inputs)
    others = [torch.randn_like(x, requires_grad=True) for x in inputs]
    assert_all_close(traced(*others), function(*others), 1e-12)
    with pytest.raises(RuntimeError, match="double backward needs eager mode"):
        make_fx(function, tracing_mode="symbolic")(*inputs)


def test_make_fx_with_symbolic_sizes_is_valid_for_other_batches():
    def function(q, r, v):
        return torch.autograd.grad(position_interaction(q, r, v, (3, 4)).square().sum(), (q, r, v))

    queries, table, values = (x.requires_grad_() for x in make_inputs((3, 4), (3, 5), 1, heads=2, k=2, v=3))
    traced = make_fx(function, tracing_mode="symbolic")(queries, table, values)
    others = torch.randn(5, *queries.shape[1:]).double(), table, torch.randn(5, *values.shape[1:]).double()
    others = [x.detach().requires_grad_() for x in others]
    assert_all_close(traced(*others), function(*others), 1e-12)


def test_subclasses_that_wrap_tensors_get_the_result_of_each():
    tensors = [[x + number for x in make_inputs((3, 4), (3, 5), 1, heads=2, k=2, v=3)] for number in range(2)]
    wrapped = [TwoTensor(*pair).requires_grad_() for pair in zip(*tensors, strict=True)]
    output = position_interaction(*wrapped, (3, 4))
    gradients = torch.autograd.grad(output.square().sum(), wrapped)
    for number, inputs in enumerate(tensors):
        expected = position_interaction(*(x.requires_grad_() for x in inputs), (3, 4))
        results = [(x.a, x.b)[number] for x in (output, *gradients)]
        assert_all_close(results, (expected, *torch.autograd.grad(expected.square().sum(), inputs)), 1e-12)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_flop_counters_count_the_lambdas_of_a_layer(device):
    layer = LambdaLayer2d(32, scope=5, device=device)
    lambdas, projections = 2 * 100 * 16 * 8 * (25 + 4), 2 * 100 * 32 * (64 + 16 + 8)
    content = 2 * 100 * 16 * 8
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(1, 32, 10, 10, device=device)).sum()
    assert counter.get_total_flops() == lambdas + projections + content


def test_the_first_flop_counter_of_a_process_counts_the_lambdas():
    code = """
import torch, lambdanets as ln
from torch.utils.flop_counter import FlopCounterMode
layer, x = ln.LambdaLayer2d(32, scope=5, device="meta"), torch.randn(1, 32, 10, 10, device="meta")
for _ in range(2):
    with FlopCounterMode(display=False) as counter:
        layer(x)
    print(counter.get_total_flops())
"""
    first, second = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert first == second
