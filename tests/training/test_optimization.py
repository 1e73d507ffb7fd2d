"""EMA, learning rate schedules and optimizers, compared with reference implementations."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.plugins import MixedPrecision
from torch import nn

from lambdanets.errors import InputError
from lambdanets.recipes import find_recipe
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training.initial_weights import build_model
from lambdanets.training.module import EMA, TrainingModule, make_schedule
from training.runs import classification_task


class ThreeWeights(LightningModule):
    """A parameter of three elements, a running statistic and a count."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        self.register_buffer("running_mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros(2, dtype=torch.long))


def make_trainer():
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    return SimpleNamespace(global_step=1, current_epoch=0, strategy=strategy)


def apply_ema(decay, weights):
    """Call the EMA callback as Lightning does, for initial weights (the first row) and the weights after each step."""
    module, ema = ThreeWeights(), EMA(decay)
    module.weight.data, module.running_mean = weights[0].clone(), -weights[0]
    trainer = make_trainer()
    trainer.global_step = 0
    ema.setup(trainer, module, "fit")
    for step, row in enumerate(weights[1:], 1):
        module.weight.data, module.running_mean = row.clone(), -row
        module.count.fill_(step)
        trainer.global_step = step
        for micro_batch in range(2):  # the second call is ignored, because no optimizer step has happened in between
            ema.on_train_batch_end(trainer, module, None, None, micro_batch)
    ema.on_train_end(trainer, module)
    return module


@pytest.mark.parametrize(("decay", "steps"), [(0.0, 2), (0.9, 1), (0.9, 60), (0.9999, 60)])
def test_ema_equals_the_reference_implementation(decay, steps):
    weights = torch.randn(steps + 1, 3, generator=torch.Generator().manual_seed(0)).cumsum(0)
    expected = weights[0].double()
    for step in range(1, steps + 1):
        step_decay = min(decay, (1 + step) / (10 + step))
        expected = expected + (1 - step_decay) * (weights[step].double() - expected)
    module = apply_ema(decay, weights)
    torch.testing.assert_close(module.weight.double(), expected, rtol=2e-6, atol=2e-6, check_dtype=False)
    assert torch.equal(module.running_mean, -module.weight)  # averaged like the weights
    assert module.count.tolist() == [steps, steps]


def test_validation_uses_ema_weights_and_training_does_not():
    module, ema = ThreeWeights(), EMA(0.9)
    trainer = make_trainer()
    ema.setup(trainer, module, "fit")
    module.weight.data = torch.full((3,), 5.0)
    ema.on_train_batch_end(trainer, module, None, None, 0)
    ema.on_validation_epoch_start(trainer, module)
    torch.testing.assert_close(module.weight.data, torch.tensor([1.0, -2.0, 3.0]).lerp(torch.full((3,), 5.0), 9 / 11))
    ema.on_validation_epoch_end(trainer, module)
    assert module.weight.tolist() == [5.0] * 3


def test_cosine_schedule_rises_to_the_peak_and_falls_to_zero():
    schedule = make_schedule(replace(DIGITS, epochs=5, warmup_epochs=1, schedule="cosine"), 4)
    factors = [schedule(step) for step in range(20)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors[12] == pytest.approx(0.5)
    assert all(earlier >= later for earlier, later in pairwise(factors[4:]))
    assert schedule(20) == pytest.approx(0)


@pytest.mark.parametrize(
    ("warmup", "length", "expected"),
    [
        (4, 3, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]),
        (0, 2.5, [1.0, 1.0, 1.0, 0.5, 0.5, 0.25]),
    ],
)
def test_staircase_schedule_is_constant_between_decays(warmup, length, expected):
    recipe = replace(DIGITS, warmup_epochs=warmup, schedule="staircase", decay=0.5, decay_epochs=length)
    assert [make_schedule(recipe, 1)(step) for step in range(len(expected))] == expected


def weights_after_steps(fields, gradients, start):
    """Yield the weights after each step of the recipe's optimizer, in float64."""
    model = nn.Linear(3, 1, bias=False).double()
    model.weight.data = start.clone()
    recipe = replace(DIGITS, warmup_epochs=0, **fields)
    module = TrainingModule(classification_task(recipe, model), 1)
    optimizer = module.configure_optimizers()["optimizer"]
    for gradient in gradients:
        model.weight.grad = gradient.clone()
        optimizer.step()
        yield model.weight.detach().clone()


GRADIENTS = torch.tensor([[[0.3, -2.0, 0.0]], [[-0.5, 1.0, 4.0]], [[0.1, 0.2, -0.3]]], dtype=torch.float64)
START = torch.tensor([[1.0, -1.0, 0.5]], dtype=torch.float64)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_rmsprop_equals_the_formula_of_tensorflow(weight_decay):
    fields = {"optimizer": "rmsprop", "learning_rate": 0.1, "momentum": 0.8, "weight_decay": weight_decay}
    weight, square, velocity = START.clone(), torch.ones_like(START), torch.zeros_like(START)
    for gradient, actual in zip(GRADIENTS, weights_after_steps(fields, GRADIENTS, START), strict=True):
        gradient = gradient + weight_decay * weight
        square = 0.9 * square + 0.1 * gradient**2
        velocity = 0.8 * velocity + 0.1 * gradient / (square + 1e-10).sqrt()
        weight = weight - velocity
        torch.testing.assert_close(actual, weight, rtol=1e-12, atol=1e-12)


def test_sgd_momentum_equals_the_reference_implementation():
    fields = {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.8, "weight_decay": 0.1}
    weight, velocity = START.clone(), torch.zeros_like(START)
    for gradient, actual in zip(GRADIENTS, weights_after_steps(fields, GRADIENTS, START), strict=True):
        velocity = 0.8 * velocity + gradient + 0.1 * weight
        weight = weight - 0.1 * velocity
        torch.testing.assert_close(actual, weight, rtol=1e-12, atol=1e-12)


def test_gradients_nonfinite_at_any_scale_and_such_statistics_end_the_run(monkeypatch):
    norm = nn.BatchNorm1d(2)
    module = TrainingModule(classification_task(replace(DIGITS, precision="16-mixed"), norm), 10)
    scales = iter((2.0, 1e-4))
    scaled = MixedPrecision("16-mixed", "cpu", SimpleNamespace(get_scale=lambda: next(scales)))
    for plugin, skip_step in ((scaled, lambda: None), (None, lambda: norm(torch.full((2, 2), torch.inf)))):
        monkeypatch.setattr(TrainingModule, "trainer", SimpleNamespace(precision_plugin=plugin))
        module.check_finite()
        skip_step()
        with pytest.raises(InputError, match="became inf or nan before step"):
            module.check_finite()


@pytest.mark.parametrize("names", [["backbone.network.fc"], {"backbone.network.fc": 1}])
def test_tables_of_detectors_and_names_of_timm_have_no_weight_decay(names):
    with torch.device("meta"):
        model = build_model(find_recipe("nuclei"), 2)
    model.no_weight_decay = lambda: names
    model.backbone.network.register_parameter("fc", nn.Parameter(torch.zeros(2, 2)))
    optimizer = TrainingModule(classification_task(DIGITS, model), 1).configure_optimizers()["optimizer"]
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    exempt = {name for name, p in model.named_parameters() if p.dim() > 1 and id(p) not in decayed}
    assert exempt == {*names} | {name for name, _ in model.named_parameters() if name.endswith(".embedding.table")}
    assert len(exempt) > 1
