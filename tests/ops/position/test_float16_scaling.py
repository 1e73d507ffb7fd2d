import pytest
import torch

from lambdanets.ops.position.fused import scaling
from lambdanets.ops.position.fused.tiles import K, most_values

MAGNITUDES = [1e-6, 1e-3, 1.0, 1e3, 1e4]


def random(*shape, magnitude=1.0, dtype=torch.float16):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * magnitude).to(dtype)


def is_power_of_two(x):
    return torch.frexp(x).mantissa.eq(0.5).all()


@pytest.mark.parametrize("of_table", MAGNITUDES)
@pytest.mark.parametrize("of_queries", MAGNITUDES)
def test_no_sum_of_products_and_no_operand_leaves_float16(of_queries, of_table):
    queries = random(2, 4, 9, K, magnitude=of_queries)
    table = random(5, 5, K, 1, magnitude=of_table, dtype=torch.float32)
    operands = scaling.forward_operands(queries, table, None)
    assert operands.table.isfinite().all()
    bound = K * queries.abs().max().float() * operands.table.abs().max().float()
    assert bound < torch.finfo(torch.float16).max
    assert is_power_of_two(operands.scales[0])
    restored = operands.table.float() * operands.scales[0]
    assert (restored - table).abs().max() <= torch.finfo(torch.float16).eps * table.abs().max()


@pytest.mark.parametrize("of_gradient", [1e-12, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("of_values", MAGNITUDES)
def test_gradients_of_any_size_are_scaled_into_float16(of_gradient, of_values):
    v = 48
    gradient = random(2, 4, 9, v, magnitude=of_gradient, dtype=torch.float32)
    values = random(2, 9, v, 1, magnitude=of_values)
    queries, table = random(2, 4, 9, K), random(5, 5, K, 1, dtype=torch.float32)
    operands = scaling.backward_operands(gradient, queries, table, values, random(2, K, v, dtype=torch.float32))
    terms = min(v, most_values(2))
    assert terms * operands.gradient.abs().max().float() * values.abs().max().float() < torch.finfo(torch.float16).max
    restored = operands.gradient.float() * operands.grad_table_scale
    assert (restored - gradient).abs().max() <= torch.finfo(torch.float16).eps * gradient.abs().max()
    for scale in (operands.grad_queries_scales, operands.grad_table_scale, operands.grad_values_scale):
        assert is_power_of_two(scale)
        assert scale.isfinite().all()


@pytest.mark.parametrize("number", [0.0, torch.inf, torch.nan])
def test_scales_are_finite_whatever_the_inputs_hold(number):
    queries = torch.full((1, 1, 4, K), number, dtype=torch.float16)
    operands = scaling.forward_operands(queries, random(3, 3, K, 1, dtype=torch.float32), None)
    assert operands.scales.isfinite().all()
    assert is_power_of_two(operands.scales)
    assert operands.table.isfinite().all()
