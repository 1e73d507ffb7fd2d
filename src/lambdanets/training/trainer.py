"""Lightning's Trainer, set up for a recipe and for the processes that train together."""

import logging
import sys
import warnings
from pathlib import Path

import torch
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy

from lambdanets.locks import Lock
from lambdanets.training.checkpoints import AtomicCheckpointIO
from lambdanets.training.processes import Processes
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.speed import Progress, ProgressLines, Speed


def make_trainer(
    recipe: TrainingRecipe,
    folder: Path,
    callbacks: list[Callback],
    speed: Speed,
    logger: Logger,
    these: Processes,
    parts: int,
    lock: Lock | None = None,
) -> Trainer:
    """A trainer on all GPUs that torchrun has given processes, or on one GPU, or on the processor.

    parts: batches whose gradients add up to a step's. lock: of the folder, in the process that has it.
    """
    _quieten()
    watched = sys.stderr.isatty() and these.is_rank_zero
    shown: list[Callback] = [Progress(speed) if watched else ProgressLines(speed)] if these.is_rank_zero else []
    several = these.world_size > 1
    return Trainer(
        default_root_dir=folder,
        max_epochs=recipe.epochs,
        precision=recipe.precision,
        accelerator="cuda" if torch.cuda.is_available() else "cpu",
        devices=these.local_world_size,
        num_nodes=these.nodes,
        strategy=_data_parallel() if several else "auto",
        accumulate_grad_batches=parts,
        gradient_clip_val=recipe.clip_gradient,
        callbacks=[*callbacks, *shown],
        # named, so that a scheduler's variables, such as SLURM's, are not taken for a launcher
        plugins=[AtomicCheckpointIO(lock), TorchElasticEnvironment() if several else LightningEnvironment()],
        logger=logger,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=watched,
        enable_model_summary=False,
    )


def _data_parallel() -> DDPStrategy:
    # Looking for unused parameters keeps DDP from laying out gradients anew after the first step. A run that goes on
    # would sum its first step in another layout, and so, with three processes or more, in another order.
    same_layout = not torch.cuda.is_available()
    return DDPStrategy(gradient_as_bucket_view=True, find_unused_parameters=same_layout)


def _quieten() -> None:
    """Lightning's notes on devices and its advertisements; what a user must know, this package says itself."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*smaller than the logging interval.*",  # of self.log, which this package does not use for its rows
        ".*Checkpoint directory.*exists and is not empty.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*training_step. returned .None.*",  # a batch without readable images
        ".*dirpath has changed.*",  # a run's folder may be moved
        ".*Glyph .* missing from font.*",  # class names in scripts that the font of the pictures lacks
        ".*It is recommended to use .self.log.*sync_dist=True.*",  # it is the same in all processes
        ".*find_unused_parameters=True was specified.*",
        ".*Grad strides do not match bucket view strides.*",  # channels_last weights
    ):
        warnings.filterwarnings("ignore", message)
