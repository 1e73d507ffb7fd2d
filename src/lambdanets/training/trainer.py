"""Lightning's Trainer, configured for a recipe and the world size."""

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
from lambdanets.training.distributed import World
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.speed import Progress, ProgressLines, Speed


def make_trainer(
    recipe: TrainingRecipe,
    folder: Path,
    callbacks: list[Callback],
    speed: Speed,
    logger: Logger,
    world: World,
    accumulation_steps: int,
    lock: Lock | None = None,
) -> Trainer:
    """A trainer with DDP under torchrun, else on one GPU or the CPU. lock: that of the folder, on rank zero."""
    _silence_lightning()
    watched = sys.stderr.isatty() and world.is_rank_zero
    shown: list[Callback] = [Progress(speed) if watched else ProgressLines(speed)] if world.is_rank_zero else []
    several = world.world_size > 1
    return Trainer(
        default_root_dir=folder,
        max_epochs=recipe.epochs,
        precision=recipe.precision,
        accelerator="cuda" if torch.cuda.is_available() else "cpu",
        devices=world.local_world_size,
        num_nodes=world.nodes,
        strategy=_data_parallel() if several else "auto",
        accumulate_grad_batches=accumulation_steps,
        gradient_clip_val=recipe.clip_gradient,
        callbacks=[*callbacks, *shown],
        # explicit, as Lightning would take the variables of SLURM for a launcher
        plugins=[AtomicCheckpointIO(lock), TorchElasticEnvironment() if several else LightningEnvironment()],
        logger=logger,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=watched,
        enable_model_summary=False,
    )


def _data_parallel() -> DDPStrategy:
    # find_unused_parameters keeps DDP from rebuilding its buckets after the first step: a resumed run would sum the
    # gradients of its first step in other buckets, and from three ranks on in another order.
    same_layout = not torch.cuda.is_available()
    return DDPStrategy(gradient_as_bucket_view=True, find_unused_parameters=same_layout)


def _silence_lightning() -> None:
    """Silence notes on devices, advertisements, and warnings that do not apply here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*smaller than the logging interval.*",  # of self.log, which this package does not use for its rows
        ".*Checkpoint directory.*exists and is not empty.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*training_step. returned .None.*",  # a batch without readable images
        ".*dirpath has changed.*",  # a run folder may be moved
        ".*Glyph .* missing from font.*",  # class names in scripts that the figures' font lacks
        ".*It is recommended to use .self.log.*sync_dist=True.*",  # already reduced over ranks
        ".*find_unused_parameters=True was specified.*",
        ".*Grad strides do not match bucket view strides.*",  # channels_last weights
    ):
        warnings.filterwarnings("ignore", message)
