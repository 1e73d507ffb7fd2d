"""Merged query, key and value projections, against separate calls of the projections and norms."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import prune

from lambdanets import LambdaLayer, LambdaLayer2d, RelativeEmbedding, position_interaction
from lambdanets.layers.projection import project


def random_tensor(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def make_pairs(training=False):
    """Return two projections with a norm and one without; the norms have random statistics, weights and biases."""
    torch.manual_seed(0)
    pairs = [(nn.Conv2d(6, c, 1, bias=False).double(), nn.BatchNorm2d(c).double().train(training)) for c in (4, 3)]
    for _, norm in pairs:
        for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
            tensor.uniform_(0.5, 2)
    return [*pairs, (nn.Conv2d(6, 5, 1, bias=False).double(), None)]


def separate_calls(x, pairs):
    maps = [projection(x) if norm is None else norm(projection(x)) for projection, norm in pairs]
    return [y.flatten(2) for y in maps]


def assert_all_close(results, expected):
    for result, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=1e-11, atol=1e-11)


def smooth(module):
    nn.utils.parametrize.register_parametrization(module, "weight", nn.Softplus())


MODIFICATIONS = {
    "forward hook": lambda module: module.register_forward_hook(lambda _, inputs, output: 2 * output),
    "forward pre-hook": lambda module: module.register_forward_pre_hook(lambda _, inputs: (3 * inputs[0],)),
    "backward hook": lambda module: module.register_full_backward_hook(lambda _, grads, outputs: (5 * grads[0],)),
    "replaced forward": lambda module: setattr(module, "forward", lambda x, old=module.forward: old(x) - 1),
    "parametrization": smooth,
}


@pytest.mark.parametrize("index", [(0, 0), (1, 1), (2, 0)], ids=["projection", "norm", "projection without norm"])
@pytest.mark.parametrize("modify", MODIFICATIONS.values(), ids=MODIFICATIONS.keys())
def test_respects_hooks_and_parametrizations(modify, index):
    pairs, x = make_pairs(), random_tensor(2, 6, 3, 4).requires_grad_()
    modify(pairs[index[0]][index[1]])
    outputs, expected = project(x, pairs, is_tokens=False), separate_calls(x, pairs)
    assert_all_close(outputs, expected)
    weights = [random_tensor(*y.shape) for y in expected]
    torch.testing.assert_close(*(torch.autograd.grad(y, x, weights) for y in (outputs, expected)))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_hooks_of_all_modules_see_every_module_of_a_layer(training):
    layer, x = LambdaLayer2d(8, scope=3).train(training), torch.randn(2, 8, 5, 6)
    expected, seen = copy.deepcopy(layer)(x), []
    with register_module_forward_hook(lambda module, inputs, output: seen.append(module)):
        output = layer(x)
    assert set(seen) == set(layer.modules())
    torch.testing.assert_close(output, expected)


OTHER_PROJECTIONS = {
    "bias": lambda: nn.Conv2d(6, 3, 1),
    "3x3 kernel": lambda: nn.Conv2d(6, 3, 3, padding=1, bias=False),
    "groups": lambda: nn.Conv2d(6, 3, 1, groups=3, bias=False),
    "Sequential": lambda: nn.Sequential(nn.Conv2d(6, 3, 1), nn.ReLU()),
}


@pytest.mark.parametrize("make", OTHER_PROJECTIONS.values(), ids=OTHER_PROJECTIONS.keys())
def test_other_projections_are_called_as_modules(make):
    pairs, x = make_pairs(), random_tensor(2, 6, 3, 4)
    pairs[1] = (make().double(), pairs[1][1])
    assert_all_close(project(x, pairs, is_tokens=False), separate_calls(x, pairs))


OTHER_NORMS = {
    "group norm": lambda: nn.GroupNorm(3, 3).double(),
    "synchronized batch norm": lambda: nn.SyncBatchNorm(3).double(),
    "batch norm without running statistics": lambda: nn.BatchNorm2d(3, track_running_stats=False).double(),
    "batch norm of cumulative statistics": lambda: nn.BatchNorm2d(3, momentum=None).double(),
    "batch norm without weight and bias": lambda: nn.BatchNorm2d(3, affine=False).double(),
}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", OTHER_NORMS)
def test_other_norms_are_called_with_maps(name, training):
    pairs, x = make_pairs(training=training), random_tensor(2, 6, 3, 4).requires_grad_()
    pairs[1] = (pairs[1][0], OTHER_NORMS[name]().train(training))
    reference_pairs = copy.deepcopy(pairs)
    outputs, expected = project(x, pairs, is_tokens=False), separate_calls(x, reference_pairs)
    assert_all_close(outputs, expected)
    weights = [random_tensor(*y.shape) for y in expected]
    assert_all_close(torch.autograd.grad(outputs, x, weights), torch.autograd.grad(expected, x, weights))


def test_backward_of_an_empty_batch_is_zero():
    layer = LambdaLayer2d(8).eval()
    x = torch.randn(0, 8, 16, 16, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.shape == x.shape
    assert all(not parameter.grad.any() for parameter in layer.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("side", [5, 16])
def test_backward_within_autocast_is_as_accurate_as_bfloat16(side):
    torch.manual_seed(0)
    layer, x = LambdaLayer2d(8, scope=3), torch.randn(2, 8, side, side, requires_grad=True)
    inputs = [x, *layer.parameters()]
    expected = torch.autograd.grad(layer(x).sum(), inputs)
    output = layer(x).sum()
    with torch.autocast("cpu", torch.bfloat16):
        actual = torch.autograd.grad(output, inputs)
    for gradient, reference in zip(actual, expected, strict=True):
        assert gradient.dtype == reference.dtype
        torch.testing.assert_close(gradient, reference, rtol=2e-2, atol=2e-2 * float(reference.abs().max()))


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 8), nn.InstanceNorm2d(8)])
def test_masks_are_rejected_with_norms_that_mix_positions(norm):
    layer = LambdaLayer2d(8, scope=3)
    layer.value_norm = type(norm)(2, 2 * 4) if isinstance(norm, nn.GroupNorm) else norm
    x, mask = torch.randn(2, 8, 5, 6), torch.ones(2, 5, 6, dtype=torch.bool)
    with pytest.raises(ValueError, match="mask must be None for a layer with a"):
        layer(x, mask)


def test_masks_are_accepted_with_norms_that_do_not_mix_positions():
    tokens, valid = LambdaLayer(8, position=False), torch.arange(6) < 4
    tokens.value_norm = nn.GroupNorm(1, 2)
    maps = LambdaLayer2d(8, scope=3).eval()
    maps.value_norm = nn.InstanceNorm2d(2, track_running_stats=True).eval()
    for layer, shape, mask, keep in (
        (tokens, (2, 6, 8), valid.expand(2, 1, 6), valid[:, None]),
        (maps, (2, 8, 6, 5), valid[:, None].expand(2, 6, 5), valid[:, None]),
    ):
        x = torch.randn(shape)
        changed = torch.where(keep, x, 7.0)
        torch.testing.assert_close(layer(x, mask=mask) * keep, layer(changed, mask=mask) * keep)


MAPS = torch.randn(2, 8, 5, 6)
OPERATIONS = {
    "maps": (LambdaLayer2d(8, scope=3), MAPS),
    "channels last": (LambdaLayer2d(8, scope=3), MAPS.contiguous(memory_format=torch.channels_last)),
    "strided": (LambdaLayer2d(8, scope=3, stride=2), MAPS),
    "tokens": (LambdaLayer(8, embedding=RelativeEmbedding((5,), 16)), torch.randn(2, 6, 8)),
    "position only": (
        LambdaLayer(8, embedding=RelativeEmbedding((5,), 16), content=False, batch_norm=False, causal=True),
        torch.randn(2, 6, 8),
    ),
    "position_interaction": (
        lambda x: position_interaction(x[:, None], torch.ones(3, 6), x, (5,)),
        torch.randn(2, 5, 6),
    ),
}


@pytest.mark.parametrize(("operation", "x"), OPERATIONS.values(), ids=OPERATIONS.keys())
def test_outputs_of_layers_may_be_modified_in_place(operation, x):
    gradients = []
    for change in (lambda y: (y + 1).relu(), lambda y: y.add_(1).relu_()):
        x = x.detach().requires_grad_()
        gradients += torch.autograd.grad(change(operation(x)).sum(), x, create_graph=True)
    torch.testing.assert_close(*gradients)
    gradients[0].add_(1)


def test_pruned_tables_are_pruned_in_each_step():
    layer = LambdaLayer2d(8, scope=3, batch_norm=False)
    prune.l1_unstructured(layer.embedding, "table", 0.5)
    for _ in range(2):  # the second step fails if the table is not computed again
        layer(torch.randn(2, 8, 5, 6)).sum().backward()
    assert layer.embedding.table_orig.grad.count_nonzero() <= layer.embedding.table_mask.sum()


@pytest.mark.parametrize("embedding", [RelativeEmbedding((3, 3), 1), [RelativeEmbedding((3, 3), 16, heads=8)]])
def test_tables_of_other_depths_or_heads_are_rejected(embedding):
    with pytest.raises(ValueError, match="embedding must have the"):
        LambdaLayer2d(8, heads=4, multi_head=isinstance(embedding, list), embedding=embedding)
