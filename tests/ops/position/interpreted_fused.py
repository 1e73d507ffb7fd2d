"""Runs the fused kernels in Triton's interpreter and prints their errors as JSON: TRITON_INTERPRET=1 must be set."""

import json
import math
import sys
import time

import torch

from lambdanets.ops import definition
from lambdanets.ops.geometry import crop_to_grid
from lambdanets.ops.position import fused
from lambdanets.ops.position.problem import problem_of

# batch, heads, grid, sides, k, v, u
CASES = {
    "ragged tiles": (5, 4, (9, 11), (5, 5), 16, 16, 1),
    "global": (2, 4, (14, 6), (27, 11), 16, 16, 1),
    "small": (1, 4, (7, 7), (3, 3), 16, 32, 1),
    "line": (3, 4, (20,), (7,), 16, 16, 1),
}
which = sys.argv[1:] or CASES
for name in which:
  for dtype in (torch.float32, torch.float16):
    b, h, grid, sides, k, v, u = CASES[name]
    t0=time.time()
    torch.manual_seed(0)
    n = math.prod(grid)
    q = torch.randn(b, h, n, k, dtype=torch.float64).to(dtype)
    r = torch.randn(*sides, k, u, dtype=torch.float64).to(dtype)
    vals = torch.randn(b, n, v, u, dtype=torch.float64).to(dtype)
    g = torch.randn(b, h, n, v, dtype=torch.float64).to(dtype)
    r = crop_to_grid(r, grid, 1)
    problem = problem_of(q, r, vals, grid, 1)
    xs = [x.double().requires_grad_() for x in (q, r, vals)]
    y = definition.position_interaction(*xs, grid)
    exact = [y, *torch.autograd.grad(y, xs, g.double())]
    if dtype==torch.float16:
        a=fused.forward_in_order("lambda",q,r,vals,problem); print("lambda", ((a.double()-y).norm()/y.norm()).item())
        a=fused.forward_in_order("query",q,r,vals,problem); print("query", ((a.double()-y).norm()/y.norm()).item())
    got = [fused.forward(q, r, vals, problem), *fused.backward(g, q, r, vals, problem, (True,) * 3)]
    print(name, dtype, [((a.double() - e).norm() / e.norm()).item() for a, e in zip(got, exact)], time.time()-t0)
