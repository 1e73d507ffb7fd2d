"""The position term in exported graphs: every implementation equals the definition in float64."""

import pytest
import torch
from torch import nn

from lambdanets.ops import definition, position_interaction

# grid, sides of the table, h, k, v, u. The first three have the three forms of graphs.
CASES = {
    "pairs": ((4, 5), (7, 9), 2, 4, 12, 1),
    "convolution": ((4, 60), (3, 3), 2, 4, 6, 1),
    "rows": ((12, 14), (9, 11), 4, 4, 8, 1),
    "tiles of rows": ((13, 14), (5, 11), 4, 4, 8, 1),
    "odd tiles, intra-depth": ((15, 17), (5, 13), 2, 3, 8, 2),
    "pairs, intra-depth": ((4, 5), (7, 9), 2, 4, 12, 3),
    "table larger than the grid": ((3, 4), (23, 23), 2, 4, 12, 1),
    "one position": ((1, 1), (5, 5), 2, 4, 8, 1),
    "sequence": ((130,), (41,), 8, 4, 8, 1),
    "volume": ((4, 5, 14), (3, 5, 11), 4, 4, 8, 1),
}
FORMS = [*CASES][:3]


class Interaction(nn.Module):
    def __init__(self, grid, table, **options):
        super().__init__()
        self.grid, self.options = grid, options
        self.table = nn.Parameter(table)

    def forward(self, queries, values, content):
        return position_interaction(queries, self.table, values, self.grid, content=content, **self.options)


def make_case(grid, sides, h, k, v, u, batch=2):
    generator = torch.Generator().manual_seed(0)
    n = torch.Size(grid).numel()
    shapes = {
        "queries": (batch, h, n, k),
        "table": (*sides, k, u),
        "values": (batch, n, v, u),
        "content": (batch, k, v),
    }
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


GRAPHS = [(name, 1, index % 2 == 0) for index, name in enumerate(CASES)]
GRAPHS += [(name, 2 + index % 2, index % 2 == 1) for index, name in enumerate([*FORMS, "sequence", "volume"])]


@pytest.mark.parametrize(("name", "dilation", "causal"), GRAPHS)
def test_exported_interaction_equals_the_definition(name, dilation, causal):
    case = CASES[name]
    inputs = make_case(*case)
    table = inputs.pop("table")
    module = Interaction(case[0], table, dilation=dilation, causal=causal)
    exported = torch.export.export(module, (), inputs).module()
    expected = definition.position_interaction(
        inputs["queries"], table, inputs["values"], case[0], dilation=dilation, causal=causal
    )
    expected = expected + inputs["queries"] @ inputs["content"].unsqueeze(1)
    torch.testing.assert_close(exported(**inputs), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FORMS)
def test_exported_interaction_accepts_any_batch_size(name):
    inputs = make_case(*CASES[name])
    table = inputs.pop("table")
    module = Interaction(CASES[name][0], table)
    shapes = {key: {0: torch.export.Dim.DYNAMIC} for key in inputs}
    exported = torch.export.export(module, (), inputs, dynamic_shapes=shapes).module()
    for batch in (1, 5):
        new_inputs = make_case(*CASES[name], batch=batch)
        del new_inputs["table"]
        torch.testing.assert_close(exported(**new_inputs), module(**new_inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FORMS)
def test_bfloat16_graphs_have_the_error_of_bfloat16(name):
    inputs = {key: x.bfloat16() for key, x in make_case(*CASES[name]).items()}
    grid, table = CASES[name][0], inputs.pop("table")
    exported = torch.export.export(Interaction(grid, table), (), inputs).module()(**inputs)
    queries, values, content = (x.double() for x in inputs.values())
    exact = definition.position_interaction(queries, table.double(), values, grid) + queries @ content.unsqueeze(1)
    assert exported.dtype == torch.bfloat16
    assert (exported - exact).norm() <= 3 * torch.finfo(torch.bfloat16).eps * exact.norm()


@pytest.mark.parametrize("name", FORMS)
def test_float32_error_in_graphs_is_at_most_twice_the_reference_error(name):
    inputs = make_case(*CASES[name])
    del inputs["content"]
    grid = CASES[name][0]
    exact = definition.position_interaction(inputs["queries"], inputs["table"], inputs["values"], grid)
    inputs32 = {key: x.float() for key, x in inputs.items()}
    reference = definition.position_interaction(inputs32["queries"], inputs32["table"], inputs32["values"], grid)
    module = Interaction(grid, inputs32.pop("table"))
    actual = torch.export.export(module, (), {**inputs32, "content": None}).module()(**inputs32, content=None)
    bound = 2 * (reference - exact).norm() + 1e-7 * exact.norm()
    assert (actual - exact).norm() <= bound
