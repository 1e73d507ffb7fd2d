"""Builds Lightning's Trainer for a recipe and a world size."""

import logging
import warnings
from pathlib import Path

import torch
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy

from lambdanets.models.factory import list_models
from lambdanets.training.checkpoints import AtomicCheckpointIO
from lambdanets.training.distributed import World
from lambdanets.training.recipe import TrainingRecipe


def make_trainer(
    recipe: TrainingRecipe, folder: Path, callbacks: list[Callback], world: World, accumulation_steps: int
) -> Trainer:
    """Return a trainer with DDP under torchrun, otherwise on one GPU or the CPU."""
    # messages about devices, advertisements, and warnings that do not apply here
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*find_unused_parameters=True was specified.*",
        ".*Grad strides do not match bucket view strides.*",  # channels_last weights
    ):
        warnings.filterwarnings("ignore", message)
    is_distributed = world.world_size > 1
    trainer = Trainer(
        default_root_dir=folder,
        max_epochs=recipe.epochs,
        precision=recipe.precision,
        accelerator="cuda" if torch.cuda.is_available() else "cpu",
        devices=world.local_world_size,
        num_nodes=world.world_size // world.local_world_size,  # all have the same number of processes
        strategy=_ddp_strategy(recipe.model) if is_distributed else "auto",
        accumulate_grad_batches=accumulation_steps,
        gradient_clip_val=recipe.clip_gradient,
        callbacks=callbacks,
        # explicit, because Lightning would otherwise use the environment variables of SLURM
        plugins=[AtomicCheckpointIO(), TorchElasticEnvironment() if is_distributed else LightningEnvironment()],
        logger=False,
        enable_checkpointing=False,  # by Lightning's own callback
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # signals are KeepLast's: Lightning's handlers can stop in the middle of an optimizer step, or wait for other ranks,
    # and its broadcast of signals waits for the GPU before each micro-batch
    trainer._signal_connector.register_signal_handlers = lambda: None
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    return trainer


def _ddp_strategy(model: str) -> DDPStrategy:
    # Without find_unused_parameters, DDP rebuilds its buckets after the first step. The first step of a resumed run
    # would use other buckets than in an uninterrupted run, and three or more ranks would sum in another order.
    keep_buckets = not torch.cuda.is_available()
    # timm's networks may compute stages whose features are not used, and DDP would wait for their gradients
    may_have_unused = model not in list_models()
    return DDPStrategy(gradient_as_bucket_view=True, find_unused_parameters=keep_buckets or may_have_unused)
