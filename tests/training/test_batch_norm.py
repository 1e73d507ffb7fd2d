import pytest
import timm
import torch
from torch import nn

from lambdanets.errors import InputError
from lambdanets.models import create_model
from lambdanets.models.padding import Padding
from lambdanets.training.batch_norm import prepare_batch_norm, synchronized
from lambdanets.training.recipe import Recipe


def norms(model):
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def test_the_momentum_reaches_every_batch_norm():
    model = prepare_batch_norm(create_model("lambda_resnet20_small"), Recipe(batch_norm_momentum=0.0001))
    assert norms(model)
    assert {norm.momentum for norm in norms(model)} == {0.0001}


def test_one_process_keeps_its_batch_norms():
    model = synchronized(create_model("lambda_resnet20_small"), Recipe(sync_batch_norm=True), 1)
    assert not any(isinstance(norm, nn.SyncBatchNorm) for norm in norms(model))


def test_batch_norm_over_processes_is_refused_without_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="sync_batch_norm needs a GPU for each process"):
        prepare_batch_norm(create_model("lambda_resnet20_small"), Recipe(sync_batch_norm=True), processes=2)


@pytest.mark.parametrize("name", ["mobilenetv2_100", "lambda_resnet50", "resnet50"])
def test_over_gpus_every_norm_is_synchronized_and_no_activation_is_lost(name):
    with torch.device("meta"):
        model = timm.create_model(name)
    before = len(norms(model))
    activations = sum(isinstance(module, nn.ReLU6) for module in model.modules())
    model = synchronized(model, Recipe(sync_batch_norm=True), 2)
    assert len(norms(model)) == before
    assert all(isinstance(norm, nn.SyncBatchNorm) for norm in norms(model))
    assert sum(isinstance(module, nn.ReLU6) for module in model.modules()) == activations


def test_a_norm_that_hides_padding_does_so_when_synchronized():
    body = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    Padding().hide_in(body)
    before = [dict(body[1]._forward_pre_hooks), dict(body[1]._forward_hooks)]
    model = synchronized(body, Recipe(sync_batch_norm=True), 2)
    assert isinstance(model[1], nn.SyncBatchNorm)
    assert [dict(model[1]._forward_pre_hooks), dict(model[1]._forward_hooks)] == before
    assert all(before)
