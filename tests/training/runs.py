"""Runs of tests: broken off at a step, and compared where they ended."""

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
from torch.multiprocessing import start_processes

from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training import run
from lambdanets.training.module import TrainingModule

SEED = int(os.environ.get("TRAINING_SEED", "0"))  # of the recipes that tests train; any must do


def quick_recipe(images):
    """A recipe that trains in about a second: 9 steps, 3 an epoch, with everything random in it."""
    return replace(
        DIGITS,
        data=str(images),
        channels=3,
        image_size=8,
        epochs=3,
        batch_size=6,
        warmup_epochs=0.5,
        drop_path=0.2,
        dropout=0.1,
        flip=0.5,
        rand_augment="rand-m5-n1",
        checkpoint_every=2,
        seed=SEED,
    )


def weights_of(folder):
    return load_file(folder / "weights.safetensors")


def assert_same_result(one, other):
    """Two runs ended with the same bits and told the same story."""
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert (one / "metrics.csv").read_text() == (other / "metrics.csv").read_text()
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    scores = [{name: result[name] for name in ("top1", "bbox", "segm") if name in result} for result in results]
    assert scores[0] == scores[1]
    assert scores[0]


def at_step(monkeypatch, step, action):
    """Do something when training reaches a step."""
    original = TrainingModule.training_step

    def training_step(self, batch, batch_idx):
        if self.global_step == step:
            action()
        return original(self, batch, batch_idx)

    monkeypatch.setattr(TrainingModule, "training_step", training_step)


class CrashError(Exception):
    pass


def crash():
    raise CrashError


def interrupted_run(recipe, folder, monkeypatch, step=5):
    """A run that crashed at a step, with a checkpoint in mid-epoch."""
    with monkeypatch.context() as patch:
        at_step(patch, step, crash)
        with pytest.raises(CrashError):
            run.start(recipe, folder)
    return folder


def train_on_ranks(recipe, folder, count, last_step=None):
    """Exit codes of processes that train a recipe together, forked to spare them the imports.

    last_step: SIGKILL meets all of them when they have done so many.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = multiprocessing.get_context("fork").Process
    these = [start(target=_train, args=(recipe, folder, rank, count, port, last_step)) for rank in range(count)]
    for process in these:
        process.start()
    for process in these:
        process.join(timeout=120)
    return [process.exitcode for process in these]


def run_on_two_ranks(work, folder):
    """What each of two processes, forked and joined by gloo, makes of work(rank). They meet in a file of the folder."""
    start_processes(_meet, (work, str(folder)), nprocs=2, start_method="fork")
    return [torch.load(f"{folder}/made by {rank}.pt") for rank in range(2)]


def _meet(rank, work, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.save(work(rank), f"{folder}/made by {rank}.pt")
    dist.destroy_process_group()


def _train(recipe, folder, rank, count, port, last_step):
    """As one of the processes that torchrun started."""
    torch.set_num_threads(1)
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if last_step is not None:
        at_step(pytest.MonkeyPatch(), last_step, lambda: os.kill(os.getpid(), signal.SIGKILL))
    run.start(recipe, folder)
