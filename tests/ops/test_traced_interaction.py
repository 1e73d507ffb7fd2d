"""The position term in exported graphs: every implementation equals the definition in float64."""

import pytest
import torch
from exactness import assert_error_within_budget
from torch import nn

from lambdanets.ops import position_interaction
from lambdanets.ops.position.exported import interact_in_graph
from ops.position.interactions import define, make_factors

# grid, sides of the table, h, k, v, u, dilation, causal. The first three have the three forms of graphs.
CASES = {
    "pairs, intra-depth": ((4, 5), (7, 9), 2, 4, 12, 3, 1, True),
    "convolution, dilated": ((4, 60), (3, 3), 2, 4, 6, 1, 3, True),
    "rows": ((12, 14), (9, 11), 4, 4, 8, 1, 1, False),
    "odd tiles, intra-depth": ((15, 17), (5, 13), 2, 3, 8, 2, 1, True),
    "table larger than the grid": ((3, 4), (23, 23), 2, 4, 12, 1, 1, False),
    "sequence": ((130,), (41,), 8, 4, 8, 1, 1, True),
    "volume": ((4, 5, 14), (3, 5, 11), 4, 4, 8, 1, 1, False),
}


class Interaction(nn.Module):
    def __init__(self, grid, table, **options):
        super().__init__()
        self.grid, self.options = grid, options
        self.table = nn.Parameter(table)

    def forward(self, queries, values, content):
        return position_interaction(queries, self.table, values, self.grid, content=content, **self.options)


def make_case(name, **options):
    """Return the grid, queries, table, values and content."""
    grid, sides, h, k, v, u, *_ = CASES[name]
    return grid, *make_factors(grid, sides, u, heads=h, k=k, v=v, **options)


@pytest.mark.parametrize("name", CASES)
def test_exported_interaction_equals_the_definition_for_any_batch(name):
    grid, queries, table, values, content = make_case(name)
    *_, dilation, causal = CASES[name]
    module = Interaction(grid, table, dilation=dilation, causal=causal)
    shapes = ({0: torch.export.Dim.DYNAMIC},) * 3
    exported = torch.export.export(module, (queries, values, content), dynamic_shapes=shapes).module()
    for batch in (2, 5):
        grid, queries, _, values, content = make_case(name, batch=batch)
        expected = define(queries, table, values, content, grid, dilation=dilation, causal=causal)
        torch.testing.assert_close(exported(queries, values, content), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*CASES][:3])
def test_errors_in_graphs_are_at_most_twice_those_of_the_reference(name, dtype):
    grid, *factors = make_case(name, dtype=dtype)
    exact, reference = (define(*x, grid) for x in ([x.double() for x in factors], factors))
    result = interact_in_graph(*factors, grid, causal=False)
    assert result.dtype == dtype
    assert_error_within_budget(result, reference, exact)
