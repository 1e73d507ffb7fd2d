"""Starts runs that are interrupted at a step or distributed over ranks, and compares their results."""

import csv
import json
import multiprocessing
import os
import signal
import socket
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from torch.multiprocessing import start_processes

from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.tasks.classification import ClassificationTask
from lambdanets.training import callbacks, run
from lambdanets.training.initial_weights import build_model, load_initial_weights
from lambdanets.training.module import TrainingModule
from lambdanets.training.recipe import read_recipe

SEED = int(os.environ.get("TRAINING_SEED", "0"))  # seed of all recipes in tests; the tests must pass with any seed


# Options of lambda_resnet20_small with one block in each stage, and a lambda layer in c4.
SHALLOW = {"layers": [1, 1, 1, 1], "lambda_blocks": [[], [], [1], []]}


def quick_recipe(images):
    """A recipe that trains in about half a second: 3 epochs of 3 steps, with all random augmentations."""
    fields = {"data": str(images), "channels": 3, "image_size": 8, "epochs": 3, "batch_size": 6, "warmup_epochs": 0.5}
    augmentations = {"drop_path": 0.2, "dropout": 0.1, "flip": 0.5, "rand_augment": "rand-m5-n1"}
    return replace(DIGITS, model_options=SHALLOW, **fields, **augmentations, checkpoint_every=2, seed=SEED)


def load_weights(folder):
    return load_file(folder / "weights.safetensors")


def read_metrics(folder, *splits):
    """The rows of metrics.csv, by default of both splits, without the columns of speed and memory."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] in splits or not splits]
    return [{name: value for name, value in row.items() if name not in callbacks.SPEED} for row in rows]


def assert_same_result(expected, actual):
    """Assert that two runs have bit-identical weights, the same metrics and the same final metrics."""
    expected_weights, actual_weights = load_weights(expected), load_weights(actual)
    assert expected_weights.keys() == actual_weights.keys()
    assert [name for name, weight in expected_weights.items() if not torch.equal(weight, actual_weights[name])] == []
    assert read_metrics(expected) == read_metrics(actual)
    results = [json.loads((folder / "result.json").read_text()) for folder in (expected, actual)]
    names = ("top1", "bbox", "segm", "dice", "classes")
    metrics = [{name: result[name] for name in names if name in result} for result in results]
    assert metrics[0] == metrics[1]
    assert metrics[0]


def norms(model):
    """The batch norms of a network."""
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def initialized_model(recipe, classes):
    """The network of a recipe with its initial weights."""
    model = build_model(recipe, len(classes))
    load_initial_weights(model, recipe.weights, classes)
    return model


def at_step(monkeypatch, step, action):
    """Call a function when training reaches a step."""
    original = TrainingModule.training_step

    def training_step(self, batch, batch_idx):
        if self.global_step == step:
            action()
        return original(self, batch, batch_idx)

    monkeypatch.setattr(TrainingModule, "training_step", training_step)


def classification_task(recipe, model):
    """The task of a classifier of the digits."""
    return task_with(ClassificationTask, replace(recipe, data="digits"), model)


def task_with(task_type, recipe, model):
    """The task of a recipe with a model that it has not built."""
    task = task_type(recipe)
    task.model = model
    return task


class CrashError(Exception):
    pass


def crash(*_):
    raise CrashError


def resume(folder):
    """Resume a run as `lambdanets train --resume` does."""
    return run.start(read_recipe(folder / "recipe.json"), folder)


def interrupted_run(recipe, folder, monkeypatch, step=5):
    """Start a run that crashes at a step, and return its folder. Step 5 is in the middle of an epoch."""
    with monkeypatch.context() as patch:
        at_step(patch, step, crash)
        with pytest.raises(CrashError):
            run.start(recipe, folder)
    return folder


def train_on_ranks(recipe, folder, world_size, kill_at=None):
    """Train a recipe on several ranks and return their exit codes.

    The ranks are forked, which saves time for imports. kill_at: step at which each rank gets SIGKILL.
    """
    port = free_port()
    return exit_codes(_train, [(recipe, folder, rank, world_size, port, kill_at) for rank in range(world_size)])


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def exit_codes(function, arguments):
    """Call function(*each) for each of the arguments in a forked process, and return the exit codes."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=function, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=240)
    return [process.exitcode for process in processes]


def run_on_two_ranks(function, folder):
    """Call function(rank) in two forked ranks, which gloo connects through a file, and return both results."""
    start_processes(_run_rank, (function, str(folder)), nprocs=2, start_method="fork")
    return [torch.load(f"{folder}/result {rank}.pt") for rank in range(2)]


def _run_rank(rank, function, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.save(function(rank), f"{folder}/result {rank}.pt")
    dist.destroy_process_group()


def _train(recipe, folder, rank, world_size, port, kill_at):
    become_rank(rank, world_size, port)
    if kill_at is not None:
        at_step(pytest.MonkeyPatch(), kill_at, lambda: os.kill(os.getpid(), signal.SIGKILL))
    run.start(recipe, folder)


def become_rank(rank, world_size=2, port=0):
    """Set the environment of a rank that torchrun has started."""
    torch.set_num_threads(1)
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
