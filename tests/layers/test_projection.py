"""Merged query, key and value projections, against separate calls of the projections and norms."""

import copy
from types import MethodType

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import prune

from all_pairs import in_turn
from lambdanets import LambdaLayer, LambdaLayer2d, RelativeEmbedding, position_interaction
from lambdanets.adoption.trial import randomize


def change_projection(change):
    return lambda layer: change(layer.value_projection)


def change_norm(change):
    return lambda layer: change(layer.query_norm)


def replace_forward(module):
    module.forward = MethodType(lambda self, x: nn.Conv2d.forward(self, x) - 1, module)


def replaced(name, make):
    return lambda layer: setattr(layer, name, make())


# Functions that change a layer with 8 channels of x and of queries, and 4 channels of keys and of values.
CHANGES = {
    "none": lambda layer: None,
    "forward hook": change_projection(lambda m: m.register_forward_hook(lambda _, inputs, output: 2 * output)),
    "hook of a norm": change_norm(lambda m: m.register_forward_hook(lambda _, inputs, output: 2 * output)),
    "pre-hook": change_projection(lambda m: m.register_forward_pre_hook(lambda _, inputs: (3 * inputs[0],))),
    "backward hook": change_norm(lambda m: m.register_full_backward_hook(lambda _, grads, outputs: (5 * grads[0],))),
    "replaced forward": change_projection(replace_forward),
    "parametrization": change_projection(
        lambda m: nn.utils.parametrize.register_parametrization(m, "weight", nn.Softplus())
    ),
    "bias": replaced("value_projection", lambda: nn.Conv2d(8, 4, 1)),
    "3x3 kernel": replaced("key_projection", lambda: nn.Conv2d(8, 4, 3, padding=1, bias=False)),
    "groups": replaced("value_projection", lambda: nn.Conv2d(8, 4, 1, groups=4, bias=False)),
    "group norm": replaced("value_norm", lambda: nn.GroupNorm(2, 4)),
    "synchronized": replaced("value_norm", lambda: nn.SyncBatchNorm(4)),
    "no running statistics": replaced("value_norm", lambda: nn.BatchNorm2d(4, track_running_stats=False)),
    "cumulative statistics": replaced("value_norm", lambda: nn.BatchNorm2d(4, momentum=None)),
    "statistics switched off": change_norm(lambda m: setattr(m, "track_running_stats", False)),
    "no weight and bias": replaced("value_norm", lambda: nn.BatchNorm2d(4, affine=False)),
    "no bias": change_norm(lambda m: m.register_parameter("bias", None)),  # as bias=False in new PyTorch
}


def call_modules_separately(layer):
    """Return a copy of a layer whose projections and norms cannot be merged."""
    separate = copy.deepcopy(layer)
    for name, module in [*separate.named_children()]:
        if name.endswith(("projection", "norm")):
            setattr(separate, name, nn.Sequential(module))
    return separate


# norms are folded into the projections of large maps in evaluation
@pytest.mark.parametrize("side", [3, 70])
@pytest.mark.parametrize(("name", "training"), in_turn(CHANGES, (False, True)))
def test_merged_projections_equal_separate_calls(name, training, side):
    torch.manual_seed(0)
    layer = LambdaLayer2d(8, query_depth=4, heads=2, scope=3)
    CHANGES[name](layer)
    randomize(layer).double().train(training)
    x = torch.randn(2, 8, side, side, dtype=torch.float64)
    results = []
    for module in (call_modules_separately(layer), layer):
        inputs = x.clone().requires_grad_()
        output = module(inputs)
        gradients = torch.autograd.grad(output.square().mean(), [inputs, *module.parameters()])
        results.append([output, *gradients, *module.buffers()])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_hooks_of_all_modules_see_every_module_of_a_layer(training):
    layer, x = LambdaLayer2d(8, scope=3).train(training), torch.randn(2, 8, 5, 6)
    expected, seen = copy.deepcopy(layer)(x), []
    with register_module_forward_hook(lambda module, inputs, output: seen.append(module)):
        output = layer(x)
    assert set(seen) == set(layer.modules())
    torch.testing.assert_close(output, expected)


def test_weights_of_a_quantized_type_are_not_merged():
    class Quantized(torch.Tensor):  # as of torchao: a wrapper with few operations
        @staticmethod
        def __new__(cls, tensor):
            return torch.Tensor._make_wrapper_subclass(cls, tensor.shape, dtype=tensor.dtype)

        def __init__(self, tensor):
            self.tensor = tensor

        def __tensor_flatten__(self):
            return ["tensor"], None

        @staticmethod
        def __tensor_unflatten__(tensors, context, size, stride):
            return Quantized(tensors["tensor"])

        @classmethod
        def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
            if operation is torch.ops.aten.detach.default:
                return Quantized(args[0].tensor)
            raise TypeError(f"{operation} does not take quantized weights")

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            if function is nn.functional.linear:
                return function(args[0], args[1].tensor, *args[2:])
            return super().__torch_function__(function, types, args, kwargs or {})

    layer, x = LambdaLayer(8, scope=3).eval(), torch.randn(2, 5, 8)
    expected = layer(x)
    for projection in (layer.query_projection, layer.key_projection, layer.value_projection):
        projection.weight = nn.Parameter(Quantized(projection.weight.detach()), requires_grad=False)
    torch.testing.assert_close(layer(x), expected)


def test_layer_in_fsdp_with_flattened_weights_equals_the_layer(tmp_path):
    layer, x = LambdaLayer2d(8, scope=3), torch.randn(2, 8, 5, 6)
    expected = layer(x)
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        sharded = FullyShardedDataParallel(layer, device_id=torch.device("cpu"), use_orig_params=False)
        torch.testing.assert_close(sharded(x), expected)
    finally:
        dist.destroy_process_group()


def test_backward_of_an_empty_batch_is_zero():
    layer = LambdaLayer2d(8).eval()
    x = torch.randn(0, 8, 16, 16, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad.shape == x.shape
    assert all(not parameter.grad.any() for parameter in layer.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 8), nn.InstanceNorm2d(8)])
def test_masks_are_rejected_with_norms_that_mix_positions(norm):
    layer = LambdaLayer2d(8, scope=3)
    layer.value_norm = type(norm)(2, 2 * 4) if isinstance(norm, nn.GroupNorm) else norm
    x, mask = torch.randn(2, 8, 5, 6), torch.ones(2, 5, 6, dtype=torch.bool)
    with pytest.raises(ValueError, match="mask must be None for a layer with a"):
        layer(x, mask)


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
    "position_interaction": (lambda x: position_interaction(x[:, None], torch.ones(3, 6), x, (5,)), MAPS[:, 0]),
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
