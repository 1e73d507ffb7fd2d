"""Segmentation runs from end to end. Behavior that all tasks share is tested in training/test_run.py."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from convergence import train_until
from lambdanets.data.order import BatchSlice
from lambdanets.tasks.segmentation import SegmentationTask
from lambdanets.training import run
from lambdanets.training.initial_weights import build_model
from lambdanets.training.module import TrainingModule
from training.runs import read_metrics, run_on_two_ranks
from training.segmentation.tiny_segmentation import tiny_segmentation


def test_a_compiled_run_does_not_compile_for_each_size_of_images(tmp_path, monkeypatch):
    compile_module, graphs = nn.Module.compile, []

    def run_eagerly(graph, _):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(nn.Module, "compile", lambda self: compile_module(self, backend=run_eagerly))
    fields = {"model_options": {"scope": 5, "widths": [4, 8], "lambda_stages": 1}, "compile": True, "epochs": 1}
    run.start(tiny_segmentation(tmp_path / "digits", **fields), tmp_path / "run")
    assert len(graphs) == 1


def test_a_u_net_learns_to_segment_its_training_images(tmp_path):
    fields = {"validation_data": "train.json", "validation_images": "train"}
    fields = {name: str(tmp_path / "digits" / path) for name, path in fields.items()}
    # large momentum, because the running statistics of batch norm must follow within a few steps
    fields |= {"model": "unet_small", "model_options": {"widths": [16, 32, 64]}, "jitter": (1.0, 1.0)}
    fields |= {"batch_norm_momentum": 0.5}
    recipe = tiny_segmentation(tmp_path / "digits", **fields, image_size=32, learning_rate=0.01)

    def train(factor):
        folder = tmp_path / str(factor)
        result = run.start(replace(recipe, epochs=10 * factor), folder)
        return result | {"losses": [float(row["cross_entropy"]) for row in read_metrics(folder, "train")]}

    def has_learned(result):
        losses = result["losses"]
        return result["classes"][0]["dice"] > 0.8 and result["dice"] > 0.2 and losses[-1] < 0.8 * losses[0]

    train_until(has_learned, train)


def validate(recipe, batch_slice):
    torch.manual_seed(0)
    task = SegmentationTask(recipe)
    task.model = build_model(recipe, len(task.classes)).eval()
    module = TrainingModule(task, 1, batch_slice)
    module.log = lambda *_, **__: None  # Lightning's `log` needs a trainer
    module.on_validation_epoch_start()
    evaluator = task.evaluator(task.validation)
    for batch_idx, batch in enumerate(evaluator.batches(batch_size=1, batch_slice=batch_slice)):
        module.validation_step(batch, batch_idx)
    module.on_validation_epoch_end()
    return module.validation_metrics


@pytest.mark.forks
def test_segmentation_metrics_do_not_depend_on_the_world_size(tmp_path):
    recipe = tiny_segmentation(tmp_path / "digits")
    recipe = replace(recipe, validation_data=recipe.data, validation_images=recipe.images)
    expected = validate(recipe, BatchSlice())
    assert 0 < expected["dice"] < 1
    assert run_on_two_ranks(lambda rank: validate(recipe, BatchSlice(rank, 2)), tmp_path) == [expected, expected]
