from dataclasses import replace

import pytest
import timm
import torch
from torch import nn

from lambdanets.errors import InputError
from lambdanets.models import create_model
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training import run
from lambdanets.training.distributed import World
from lambdanets.training.module import TrainingModule, prepare_batch_norm
from training.runs import load_weights, norms, train_on_ranks

# freezes batch norm in the last 4 of 9 steps, when the running statistics are close to those of the images
FROZEN = {"freeze_batch_norm": 0.4, "batch_norm_momentum": 0.5, "learning_rate": 0.02}


def test_all_batch_norms_get_the_momentum_of_the_recipe():
    model = prepare_batch_norm(create_model("lambda_resnet20_small"), replace(DIGITS, batch_norm_momentum=0.0001))
    assert norms(model)
    assert {norm.momentum for norm in norms(model)} == {0.0001}


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_frozen_batch_norms_keep_their_statistics_and_train_their_weights(
    quick, accumulation_steps, tmp_path, monkeypatch
):
    recipe = replace(quick, **FROZEN, micro_batch=6 // accumulation_steps)
    recorded, original = [], TrainingModule.training_step

    def training_step(self, batch, batch_idx):
        norm = self.model.bn1
        recorded.append((self.global_step, norm.running_mean.clone(), norm.weight.detach().clone()))
        assert {module.training for module in norms(self.model)} == {self.global_step < 5}
        assert self.model.training
        return original(self, batch, batch_idx)

    monkeypatch.setattr(TrainingModule, "training_step", training_step)
    run.start(recipe, tmp_path / "run")
    final_weights = load_weights(tmp_path / "run")
    means = {step: mean for step, mean, _ in recorded}
    assert not torch.equal(means[4], means[5])
    assert torch.equal(means[5], means[8])
    assert torch.equal(means[8], final_weights["bn1.running_mean"])
    assert not torch.equal(recorded[-1][2], final_weights["bn1.weight"])


# one step of 16 images, without dropout, whose random numbers depend on the rank
ONE_STEP = {"training_images": 16, "validation_share": 0.02, "batch_size": 16, "image_size": 8, "epochs": 1}


def final_statistics(folder):
    """The running statistics of a finished run, by name."""
    names = ("running_mean", "running_var", "num_batches_tracked")
    return {name: tensor for name, tensor in load_weights(folder).items() if name.endswith(names)}


@pytest.mark.slow
@pytest.mark.forks
def test_running_statistics_do_not_depend_on_the_number_of_ranks(tmp_path):
    # a small learning rate, because training amplifies rounding
    fields = ONE_STEP | {"training_images": 32, "micro_batch": 4, "ema_decay": 0.5, "learning_rate": 1e-4}
    recipe = replace(DIGITS, **fields)
    run.start(recipe, tmp_path / "one")
    assert train_on_ranks(recipe, tmp_path / "two", 2) == [0, 0]
    on_two_ranks = final_statistics(tmp_path / "two")
    for name, statistics in final_statistics(tmp_path / "one").items():
        torch.testing.assert_close(on_two_ranks[name], statistics, rtol=1e-4, atol=1e-5)
        if "num_batches" in name:
            assert statistics == 2


def test_running_statistics_are_updated_once_per_step(tmp_path):
    recipe = replace(DIGITS, **ONE_STEP, batch_norm_momentum=0.5)
    run.start(recipe, tmp_path / "whole")
    run.start(replace(recipe, micro_batch=4), tmp_path / "accumulated")
    whole, accumulated = final_statistics(tmp_path / "whole"), final_statistics(tmp_path / "accumulated")
    # of the first layer, whose inputs are equal: the mean over micro-batches is that of the batch
    torch.testing.assert_close(accumulated["bn1.running_mean"], whole["bn1.running_mean"])
    assert accumulated["bn1.num_batches_tracked"] == whole["bn1.num_batches_tracked"] == 1


@pytest.mark.parametrize("fields", [{"sync_batch_norm": True}, {"precision": "16-mixed"}])
def test_rejects_options_that_need_gpus_without_them(fields, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="need a GPU"):
        run.open_task(replace(DIGITS, **fields), World(world_size=2))


@pytest.mark.parametrize("name", ["mobilenetv2_100", "lambda_resnet50"])
def test_sync_batch_norm_converts_every_norm_keeping_activations_and_hooks(name):
    def hooks(model):
        return [[*norm._forward_pre_hooks.values(), *norm._forward_hooks.values()] for norm in norms(model)]

    with torch.device("meta"):
        model = timm.create_model(name)
    norms(model)[0].register_forward_hook(lambda *arguments: None)
    hooks_before = hooks(model)
    activations = sum(isinstance(module, nn.ReLU6) for module in model.modules())
    model = prepare_batch_norm(model, replace(DIGITS, sync_batch_norm=True), 2)
    assert all(isinstance(norm, nn.SyncBatchNorm) for norm in norms(model))
    assert hooks(model) == hooks_before
    assert sum(isinstance(module, nn.ReLU6) for module in model.modules()) == activations
