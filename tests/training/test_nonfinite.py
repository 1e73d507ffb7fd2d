"""The diagnosis of NaN and inf: the operation, layer or parameter that it names."""

import re

import pytest
import torch
from torch import nn

from lambdanets import LambdaLayer2d
from lambdanets.training.nonfinite import diagnose_gradient, diagnose_loss, first_nonfinite_gradient


def network(layer):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), layer, nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))


def images():
    return torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))


def diagnose_network(model, loss=lambda maps: maps.square().mean(), batch=None):
    batch = images() if batch is None else batch
    assert not loss(model(batch)).isfinite()
    return diagnose_loss(model, batch, lambda: loss(model(batch)))


def diagnose_network_gradient(model, loss=lambda maps: maps.square().mean()):
    loss(model(images())).backward()
    name = first_nonfinite_gradient(model)
    model.zero_grad()
    return diagnose_gradient(model, lambda: loss(model(images()))), name


@pytest.mark.parametrize("options", [{"scope": 5}, {"scope": None, "grid": (7, 7)}, {"scope": 5, "content": False}])
@pytest.mark.parametrize("training", [True, False])
def test_overflow_in_a_lambda_layer_names_the_layer(options, training):
    layer = LambdaLayer2d(8, query_depth=4, heads=2, **options)
    with torch.no_grad():
        layer.embedding.table.mul_(3e38 / layer.embedding.table.abs().max())
    cause = diagnose_network(network(layer).train(training))
    # The native engine is no operation of PyTorch: the next one names the layer.
    assert re.fullmatch(r"the first operation with a non-finite result is .*\w+ in 2 \(LambdaLayer2d\)", cause), cause


def test_diagnosis_does_not_change_the_output_of_a_lambda_layer():
    model = network(LambdaLayer2d(8, query_depth=4, heads=2, scope=5)).train()
    outputs = []

    def loss():
        torch.manual_seed(0)
        outputs.append(model(images()))
        return outputs[-1].mean() * float("nan")

    loss()
    assert "is mul in the loss" in diagnose_loss(model, images(), loss)
    diagnose_gradient(model, loss)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


class Exp(nn.Module):
    def forward(self, x):
        return (100 * x).exp()


class InNumPy(nn.Module):
    """Computes without an operation of PyTorch, as compiled kernels do."""

    def forward(self, x):
        return torch.from_numpy(x.detach().numpy().copy()).sqrt()


class Parent(nn.Module):
    """Applies functions before and after its child module."""

    def __init__(self, before=lambda x: x, after=lambda x: x):
        super().__init__()
        self.before, self.child, self.after = before, nn.Conv2d(8, 8, 1), after

    def forward(self, x):
        return self.after(self.child(self.before(x)))


@pytest.mark.parametrize(
    ("layer", "operation"),
    [
        (Exp(), "exp in 2 (Exp)"),
        (Parent(before=lambda x: (x - x) / (x - x)), "div in 2 (Parent)"),
        (Parent(after=lambda x: x.relu().mul_(3e38).add_(3e38)), "mul_ in 2 (Parent)"),
        (nn.Sequential(Exp(), InNumPy()), "exp in 2.0 (Exp)"),
    ],
)
def test_diagnosis_names_the_innermost_layer_and_the_operation(layer, operation):
    cause = diagnose_network(network(layer))
    assert cause == f"the first operation with a non-finite result is {operation}"


def test_diagnosis_names_an_operation_of_the_loss():
    cause = diagnose_network(network(nn.Identity()), lambda maps: (0 * maps.mean()).log() * 0)
    assert cause == "the first operation with a non-finite result is log in the loss"


class Masked(nn.Module):
    """Causal attention, masked with a constant or a buffer of -inf. If `empty`, row 0 attends to no position."""

    def __init__(self, *, buffer, empty):
        super().__init__()
        mask = torch.full((49, 49), float("-inf")).triu(1)
        if empty:
            mask[0] = float("-inf")
        self.register_buffer("mask", mask)
        self.buffer = buffer

    def forward(self, x):
        maps = x.flatten(2)
        scores = maps.mT @ maps
        scores = scores + self.mask if self.buffer else scores.masked_fill(self.mask < 0, float("-inf"))
        return (maps @ scores.softmax(2).mT).unflatten(2, x.shape[2:])


@pytest.mark.parametrize("buffer", [True, False])
def test_infinite_attention_masks_are_not_reported_as_the_cause(buffer):
    cause = diagnose_network(nn.Sequential(network(Masked(buffer=buffer, empty=False)), Exp(), nn.BatchNorm2d(4)))
    assert cause.endswith("is exp in 1 (Exp)")
    assert "_softmax in 2 (Masked)" in diagnose_network(network(Masked(buffer=buffer, empty=True)))


def test_diagnosis_names_nonfinite_parameters_buffers_and_images():
    model = network(nn.Identity())
    with torch.no_grad():
        model[1].running_var[0] = float("nan")
        assert diagnose_network(model.eval()) == "the buffer 1.running_var contains NaN"
        model[0].weight[0, 0, 0, 0] = float("inf")
        assert diagnose_network(model) == "the parameter 0.weight contains NaN or inf"
    finite_model = network(nn.Identity())
    assert diagnose_network(finite_model, batch=images() * float("inf")) == "an image of the batch contains NaN or inf"


def test_running_statistics_of_the_failed_step_are_not_the_cause():
    model = network(Exp()).train()
    model(images())
    assert not model[3].running_var.isfinite().all()
    assert diagnose_network(model).endswith("exp in 2 (Exp)")


class Sqrt(nn.Module):
    def forward(self, x):
        return x + 0 * (x - x.detach()).sqrt()  # the derivative of the square root is infinite at 0


@pytest.mark.parametrize(
    ("layer", "operation", "nearest_parameter"),
    [
        (Sqrt(), "SqrtBackward0 in 2 (Sqrt)", "1.bias"),
        (Parent(before=Sqrt().forward), "SqrtBackward0 in 2 (Parent)", "1.bias"),
        (Parent(after=Sqrt().forward), "SqrtBackward0 in 2 (Parent)", "2.child.bias"),
    ],
)
def test_diagnosis_names_the_operation_of_a_nonfinite_gradient(layer, operation, nearest_parameter):
    cause, parameter = diagnose_network_gradient(network(layer))
    assert cause == f"the first operation whose backward pass has a non-finite result is {operation}"
    assert parameter == nearest_parameter


def test_overflow_in_the_backward_of_a_lambda_layer_names_the_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), LambdaLayer2d(8, query_depth=4, heads=2, scope=5))
    with torch.no_grad():
        model[1].embedding.table.mul_(1e6)
    cause, parameter = diagnose_network_gradient(model, lambda maps: maps.sum() * 1e36)
    assert re.search(r"is \w+Backward in 1 \(LambdaLayer2d\)$", cause), cause
    assert parameter.startswith("1.")


def test_gradient_finite_on_recomputation_is_reported_as_a_sum():
    model = network(nn.Identity())
    assert "sum over micro-batches or ranks" in diagnose_gradient(model, lambda: model(images()).mean())
