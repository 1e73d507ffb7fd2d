"""Merged query, key and value projections, against separate calls of projection and norm."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.nn.utils import parametrizations

from lambdanets.layers.projection import project

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
SIZES = {1: (7,), 2: (3, 4), 3: (2, 3, 2)}


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def make_pairs(dimensions=2, dim=6, training=False):
    """Projections with norm (queries, values) and without (keys); the norms have nontrivial statistics."""
    torch.manual_seed(0)
    pairs = []
    for channels, normalized in ((4, True), (3, True), (5, False)):
        projection = CONVOLUTIONS[dimensions](dim, channels, 1, bias=False, dtype=torch.float64)
        norm = NORMS[dimensions](channels, dtype=torch.float64) if normalized else None
        if norm is not None:
            for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
                tensor.uniform_(0.5, 2)
            norm.train(training)
        pairs.append((projection, norm))
    return pairs


def separate_calls(x, pairs):
    maps = [projection(x) if norm is None else norm(projection(x)) for projection, norm in pairs]
    return [y.flatten(2).mT for y in maps]


def assert_all_close(results, expected):
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def parameters_of(pairs):
    return [p for pair in pairs for module in pair if module is not None for p in module.parameters()]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("batch", [1, 2, 40])
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_rows_and_gradients_equal_projection_and_norm(dimensions, batch, training):
    pairs = make_pairs(dimensions, training=training)
    others = copy.deepcopy(pairs)
    x = random(batch, 6, *SIZES[dimensions]).requires_grad_()
    outputs, expected = project(x, pairs, tokens=False), separate_calls(x, others)
    assert_all_close(outputs, expected)
    # in the layout of maps, because PyTorch's batch norm, the reference, is wrong for other strides at batch 1
    weights = [random(*y.mT.shape).mT for y in expected]
    assert_all_close(
        torch.autograd.grad(outputs, [x, *parameters_of(pairs)], weights),
        torch.autograd.grad(expected, [x, *parameters_of(others)], weights),
    )
    for (_, norm), (_, other) in zip(pairs, others, strict=True):
        if norm is not None:
            torch.testing.assert_close(norm.running_mean, other.running_mean)
            torch.testing.assert_close(norm.running_var, other.running_var)


def test_folded_norm_follows_changes_of_the_norm():
    pairs, x = make_pairs(), random(2, 6, 3, 4)
    for change in (
        lambda norm: norm.running_mean.add_(1),
        lambda norm: norm.running_var.mul_(2),
        lambda norm: norm.weight.data.neg_(),
        lambda norm: norm.train().eval(),
        lambda norm: norm.load_state_dict({name: x + 1 for name, x in norm.state_dict().items()}),
    ):
        change(pairs[0][1])
        assert_all_close(project(x, pairs, tokens=False), separate_calls(x, pairs))


def forward_hook(module):
    module.register_forward_hook(lambda module, inputs, output: 2 * output)


def forward_pre_hook(module):
    module.register_forward_pre_hook(lambda module, inputs: (3 * inputs[0],))


def backward_hook(module):
    module.register_full_backward_hook(lambda module, into, out: (5 * into[0],))


def own_forward(module):
    forward = module.forward
    module.forward = lambda x: forward(x) - 1


def parametrization(module):
    if module.weight.ndim > 1:
        parametrizations.weight_norm(module)
    else:
        nn.utils.parametrize.register_parametrization(module, "weight", nn.Softplus())


@pytest.mark.parametrize("index", [(0, 0), (1, 1), (2, 0)], ids=["projection", "norm", "projection without norm"])
@pytest.mark.parametrize(
    "modify", [forward_hook, forward_pre_hook, backward_hook, own_forward, parametrization], ids=lambda f: f.__name__
)
def test_respects_hooks_and_parametrizations(modify, index):
    pairs, x = make_pairs(), random(2, 6, 3, 4).requires_grad_()
    before = separate_calls(x, pairs)
    weights = [random(*y.shape) for y in before]
    (gradient_before,) = torch.autograd.grad(before, x, weights)
    modify(pairs[index[0]][index[1]])
    outputs, expected = project(x, pairs, tokens=False), separate_calls(x, pairs)
    assert_all_close(outputs, expected)
    (gradient,), (other,) = (torch.autograd.grad(y, x, weights) for y in (outputs, expected))
    torch.testing.assert_close(gradient, other)
    changed = [not torch.allclose(one, two) for one, two in zip(expected, before, strict=True)]
    assert any(changed) or not torch.allclose(other, gradient_before) or modify is parametrization


PROJECTIONS = {
    "a bias": lambda: nn.Conv2d(6, 3, 1),
    "size 3": lambda: nn.Conv2d(6, 3, 3, padding=1, bias=False),
    "groups": lambda: nn.Conv2d(6, 3, 1, groups=3, bias=False),
    "another module": lambda: nn.Sequential(nn.Conv2d(6, 3, 1), nn.ReLU()),
}


@pytest.mark.parametrize("make", PROJECTIONS.values(), ids=PROJECTIONS.keys())
def test_calls_projections_that_are_not_matrix_products(make):
    pairs, x = make_pairs(), random(2, 6, 3, 4)
    pairs[1] = (make().double(), pairs[1][1])
    assert_all_close(project(x, pairs, tokens=False), separate_calls(x, pairs))


class MapNorm(nn.Module):
    """A custom norm that supports only maps (b, c, height, width), as frozen batch norms do."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).view(1, 3, 1, 1))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.weight * x - x.mean(dim=(2, 3), keepdim=True)


OTHER_NORMS = {
    "of maps": MapNorm,
    "group norm": lambda: nn.GroupNorm(3, 3).double(),
    "synchronized batch norm": lambda: nn.SyncBatchNorm(3).double(),
    "batch norm without running statistics": lambda: nn.BatchNorm2d(3, track_running_stats=False).double(),
    "batch norm without weight and bias": lambda: nn.BatchNorm2d(3, affine=False).double(),
}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("make", OTHER_NORMS.values(), ids=OTHER_NORMS.keys())
def test_other_norms_are_called_with_maps(make, training):
    pairs, x = make_pairs(training=training), random(2, 6, 3, 4).requires_grad_()
    pairs[1] = (pairs[1][0], make().train(training))
    others = copy.deepcopy(pairs)
    outputs, expected = project(x, pairs, tokens=False), separate_calls(x, others)
    assert_all_close(outputs, expected)
    weights = [random(*y.shape) for y in expected]
    assert_all_close(torch.autograd.grad(outputs, x, weights), torch.autograd.grad(expected, x, weights))
    assert getattr(pairs[1][1], "calls", 1) == 1


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("batch", [1, 3])
def test_rows_and_gradients_are_equal_in_channels_last(batch, training):
    gradients, rows = [], []
    for layout in torch.contiguous_format, torch.channels_last:
        pairs = make_pairs(training=training)
        x = random(batch, 6, 3, 4).contiguous(memory_format=layout).requires_grad_()
        outputs = project(x, pairs, tokens=False)
        (gradient,) = torch.autograd.grad(outputs, x, [random(*y.shape) for y in outputs])
        assert gradient.is_contiguous(memory_format=layout)
        gradients.append(gradient)
        rows.append(outputs)
    assert_all_close(*rows)
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("batch", [1, 2])
def test_gradcheck(batch, training, layout):
    pairs = make_pairs(dim=3, training=training)
    x = random(batch, 3, 2, 3).contiguous(memory_format=layout).requires_grad_()
    assert gradcheck(lambda x, *_: tuple(project(x, pairs, tokens=False)), (x, *parameters_of(pairs)), fast_mode=True)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_tokens_are_projected_as_rows(training):
    torch.manual_seed(0)
    projection = nn.Linear(6, 4, bias=False, dtype=torch.float64)
    norm = nn.BatchNorm1d(4, dtype=torch.float64).train(training)
    x = random(2, 5, 6)
    (rows,) = project(x, [(projection, norm)], tokens=True)
    expected = norm(projection(x).flatten(0, 1)).unflatten(0, (2, 5))
    torch.testing.assert_close(rows, expected, rtol=1e-11, atol=1e-11)
