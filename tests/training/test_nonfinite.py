"""The diagnosis of NaN and inf: the weight, image or module that it names."""

import pytest
import torch
from torch import nn

from lambdanets import LambdaLayer2d
from lambdanets.training.nonfinite import diagnose


def network(layer):
    torch.manual_seed(0)
    norms = nn.BatchNorm2d(8), nn.BatchNorm2d(8)
    return nn.Sequential(nn.Conv2d(3, 8, 3), norms[0], layer, norms[1], nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1))


def images():
    return torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))


def diagnose_network(model, loss=lambda maps: maps.square().mean(), batch=None):
    batch = images() if batch is None else batch
    return diagnose(model, batch, lambda: loss(model(batch)))


@pytest.mark.parametrize("options", [{"scope": 5}, {"scope": None, "grid": (7, 7)}])
def test_overflow_in_a_lambda_layer_names_the_layer(options):
    layer = LambdaLayer2d(8, query_depth=4, heads=2, **options)
    with torch.no_grad():
        layer.embedding.table.mul_(3e38 / layer.embedding.table.abs().max())
    assert diagnose_network(network(layer)) == "the first module with a non-finite output is 2 (LambdaLayer2d)"


@pytest.mark.parametrize("factor", [float("nan"), 1.0])
def test_diagnosis_does_not_change_the_output_of_a_lambda_layer(factor):
    model = network(LambdaLayer2d(8, query_depth=4, heads=2, scope=5)).train()
    outputs = []

    def loss():
        torch.manual_seed(0)
        outputs.append(model(images()))
        return outputs[-1].mean() * factor

    loss()
    diagnose(model, images(), loss)
    assert torch.equal(*outputs)


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
    ("layer", "cause"),
    [
        (Exp(), "output is 2 (Exp)"),
        (Parent(Exp()), "output is 2 (Parent)"),
        (nn.Sequential(nn.Identity(), Exp()), "output is 2.1 (Exp)"),
        (Sqrt(), "gradient of its output is 1 (BatchNorm2d); what follows it is the cause"),
        (Parent(Sqrt()), "gradient of its output is 2.child (Conv2d); what follows it is the cause"),
        (
            nn.Sequential(nn.ReLU(inplace=True), Sqrt()),
            "gradient of its output is 2.0 (ReLU); what follows it is the cause",
        ),
    ],
)
def test_diagnosis_names_the_innermost_module(layer, cause):
    assert diagnose_network(network(layer)) == f"the first module with a non-finite {cause}"


def test_diagnosis_names_nonfinite_parameters_images_and_losses():
    model = network(nn.Identity())
    assert diagnose_network(model, batch=images() * float("inf")) == "an image of the batch contains NaN or inf"
    assert diagnose_network(model, lambda maps: maps.mean() / 0).endswith("non-finite output is the loss")
    with torch.no_grad():
        model[0].weight[0, 0, 0, 0] = float("inf")
    assert diagnose_network(model) == "the parameter 0.weight contains NaN or inf"


def test_overflow_in_the_backward_of_a_lambda_layer_names_the_layer():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), LambdaLayer2d(8, query_depth=4, heads=2, scope=5))
    with torch.no_grad():
        model[1].embedding.table.mul_(1e6)

    def loss(maps):
        return (maps - maps.detach()).sum() * 1e36  # 0, but its gradient overflows in the layer

    assert "gradient of its output is 1." in diagnose_network(model, loss)
