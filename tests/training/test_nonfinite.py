"""The diagnosis of NaN and inf: the weight, image or module that it names."""

import pytest
import torch
from torch import nn

from lambdanets import LambdaLayer2d
from lambdanets.training.nonfinite import diagnose_gradient, diagnose_loss, first_nonfinite_gradient


def network(layer):
    torch.manual_seed(0)
    norms = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
    return nn.Sequential(nn.Conv2d(3, 8, 3), norms[0], layer, norms[1], nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1))


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


@pytest.mark.parametrize("options", [{"scope": 5}, {"scope": None, "grid": (7, 7)}])
def test_overflow_in_a_lambda_layer_names_the_layer(options):
    layer = LambdaLayer2d(8, query_depth=4, heads=2, **options)
    with torch.no_grad():
        layer.embedding.table.mul_(3e38 / layer.embedding.table.abs().max())
    cause = diagnose_network(network(layer))
    assert cause == "the first module with a non-finite output is 2 (LambdaLayer2d)"


def test_diagnosis_does_not_change_the_output_of_a_lambda_layer():
    model = network(LambdaLayer2d(8, query_depth=4, heads=2, scope=5)).train()
    outputs = []

    def loss():
        torch.manual_seed(0)
        outputs.append(model(images()))
        return outputs[-1].mean() * float("nan")

    loss()
    assert diagnose_loss(model, images(), loss).endswith("is the loss")
    diagnose_gradient(model, loss)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


class Exp(nn.Module):
    def forward(self, x):
        return (100 * x).exp()


class Sqrt(nn.Module):
    def forward(self, x):
        return x + 0 * (x - x.detach()).sqrt()  # the derivative of the square root is infinite at 0


class Parent(nn.Module):
    """Applies a function after its child module."""

    def __init__(self, after):
        super().__init__()
        self.child, self.after = nn.Conv2d(8, 8, 1), after.forward

    def forward(self, x):
        return self.after(self.child(x))


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (Exp(), "2 (Exp)"),
        (Parent(Exp()), "2 (Parent)"),
        (nn.Sequential(nn.Identity(), Exp()), "2.1 (Exp)"),
    ],
)
def test_diagnosis_names_the_innermost_module(layer, name):
    assert diagnose_network(network(layer)).endswith(f"non-finite output is {name}")


def test_diagnosis_names_nonfinite_parameters_and_images():
    model = network(nn.Identity())
    infinite = images() * float("inf")
    cause = diagnose_network(model, batch=infinite)
    assert cause == "an image of the batch contains NaN or inf"
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = float("inf")
    assert diagnose_network(model) == "the parameter 0.weight contains NaN or inf"


@pytest.mark.parametrize(
    ("layer", "name", "nearest_parameter"),
    [
        (Sqrt(), "2 (Sqrt)", "1.bias"),
        (nn.Sequential(nn.ReLU(inplace=True), Sqrt()), "2.1 (Sqrt)", "1.bias"),
        (Parent(Sqrt()), "2 (Parent)", "2.child.bias"),
    ],
)
def test_diagnosis_names_the_module_of_a_nonfinite_gradient(layer, name, nearest_parameter):
    cause, parameter = diagnose_network_gradient(network(layer))
    assert cause == f"the first module with a non-finite gradient is {name}"
    assert parameter == nearest_parameter


def test_overflow_in_the_backward_of_a_lambda_layer_names_the_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), LambdaLayer2d(8, query_depth=4, heads=2, scope=5))
    with torch.no_grad():
        model[1].embedding.table.mul_(1e6)
    cause, parameter = diagnose_network_gradient(model, lambda maps: maps.sum() * 1e36)
    assert cause.endswith("is 1 (LambdaLayer2d)")
    assert parameter.startswith("1.")
