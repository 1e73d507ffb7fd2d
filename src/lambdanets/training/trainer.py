"""Builds Lightning's Trainer for a recipe and a world size."""

import logging
import warnings
from pathlib import Path

import torch
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy

from lambdanets.models.factory import list_models
from lambdanets.training.checkpoints import AtomicCheckpointIO
from lambdanets.training.distributed import World
from lambdanets.training.progress_bar import TrainingProgress
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.run_log import RunLog


def make_trainer(
    recipe: TrainingRecipe,
    folder: Path,
    callbacks: list[Callback],
    log: RunLog,
    logger: Logger,
    world: World,
    accumulation_steps: int,
) -> Trainer:
    """Return a trainer with DDP under torchrun, otherwise on one GPU or the CPU."""
    _silence_lightning()
    progress = [TrainingProgress(log)] if world.is_rank_zero else []
    is_distributed = world.world_size > 1
    return Trainer(
        default_root_dir=folder,
        max_epochs=recipe.epochs,
        precision=recipe.precision,
        accelerator="cuda" if torch.cuda.is_available() else "cpu",
        devices=world.local_world_size,
        num_nodes=world.num_nodes,
        strategy=_ddp_strategy(recipe.model) if is_distributed else "auto",
        accumulate_grad_batches=accumulation_steps,
        gradient_clip_val=recipe.clip_gradient,
        callbacks=[*callbacks, *progress],
        # explicit, because Lightning would otherwise use the environment variables of SLURM
        plugins=[AtomicCheckpointIO(), TorchElasticEnvironment() if is_distributed else LightningEnvironment()],
        logger=logger,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _ddp_strategy(model: str) -> DDPStrategy:
    # Without find_unused_parameters, DDP rebuilds its buckets after the first step. The first step of a resumed run
    # would use other buckets than in an uninterrupted run, and three or more ranks would sum in another order.
    keep_buckets = not torch.cuda.is_available()
    # timm's networks may compute stages whose features are not used, and DDP would wait for their gradients
    may_have_unused = model not in list_models()
    return DDPStrategy(gradient_as_bucket_view=True, find_unused_parameters=keep_buckets or may_have_unused)


def _silence_lightning() -> None:
    """Hide messages about devices, advertisements, and warnings that do not apply here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*smaller than the logging interval.*",  # about self.log, which is used only for the progress bar
        ".*Checkpoint directory.*exists and is not empty.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*training_step. returned .None.*",  # a batch without readable images
        ".*dirpath has changed.*",  # a run folder may be moved
        ".*Glyph .* missing from font.*",  # class names in scripts that the font of the figures does not support
        ".*It is recommended to use .self.log.*sync_dist=True.*",  # already reduced over ranks
        ".*find_unused_parameters=True was specified.*",
        ".*Grad strides do not match bucket view strides.*",  # channels_last weights
    ):
        warnings.filterwarnings("ignore", message)
