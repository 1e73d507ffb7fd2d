"""A training run and the folder it leaves."""

import logging
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Timer, TQDMProgressBar
from torch import nn

from lambdanets.device import best_device, check_precision
from lambdanets.errors import InputError
from lambdanets.files import printable_bytes, remove_unfinished, write_whole
from lambdanets.training.checkpoints import LAST, KeepLast, WholeFiles, check_resumable, fingerprint, keep_best
from lambdanets.training.classification import Classification
from lambdanets.training.classifier import WEIGHTS, Classifier, build_model, describe, save_classifier
from lambdanets.training.data.datasets import Splits, fewer, open_splits
from lambdanets.training.data.loader import ImageBatches
from lambdanets.training.data.timm_sets import is_timm_name
from lambdanets.training.evaluation import judge
from lambdanets.training.feeding import make_batches
from lambdanets.training.history import History
from lambdanets.training.interruption import StopAfterStep
from lambdanets.training.memory import check_memory
from lambdanets.training.pictures import draw_curves, draw_predictions
from lambdanets.training.recipe import Recipe
from lambdanets.training.report import RESULT, read_result, write_result

RECIPE = "recipe.json"


@dataclass(frozen=True)
class _Prepared:
    """A run that nothing is known to stand against: data opened, model built, transforms made."""

    recipe: Recipe
    splits: Splits
    model: nn.Module
    training: ImageBatches
    validation: ImageBatches


def start(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Train by a recipe into a new folder, and return its result.

    The folder gets recipe.json at once; metrics.csv and checkpoints/ while it trains; weights.safetensors, curves.png,
    predictions.png and, last, result.json. Raises InputError for what the recipe asks and cannot be done, before the
    folder is made, and when the folder holds something already; Interrupted after Ctrl-C or SIGTERM.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder for the run")
    if folder.is_dir() and any(folder.iterdir()):
        what = "a run; go on with --resume" if (folder / RECIPE).is_file() else "files that are not a run's"
        raise InputError(f"{folder} holds {what}, or name another folder")
    if not recipe.data:
        raise InputError("data must be given, such as --data FOLDER; the recipe names none")
    prepared = _prepare(replace(recipe, **whole_paths(recipe)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder} for the run: {error.strerror}") from error
    write_whole(folder / RECIPE, printable_bytes(prepared.recipe.to_json() + "\n"))
    return _train(prepared, folder)


def check(recipe: Recipe) -> tuple[int, int]:
    """Raise InputError for what the recipe asks and cannot be done; return its classes and training images."""
    if not recipe.data:
        raise InputError("data must be given, such as --data FOLDER; the recipe names none")
    splits = _prepare(replace(recipe, **whole_paths(recipe))).splits
    return len(splits.classes), len(splits.train)


def resume(folder: Path) -> dict[str, Any]:
    """Go on with an unfinished run from its last checkpoint; the result equals that of a run never interrupted.

    A finished run is left alone and its result returned. Raises InputError when the folder is no run's, when its files
    are damaged, and when the data has changed.
    """
    if not (folder / RECIPE).is_file():
        raise InputError(f"{folder} is no folder of a run: it has no {RECIPE}")
    if (folder / RESULT).is_file():
        return read_result(folder)
    recipe = Recipe.from_json((folder / RECIPE).read_bytes(), str(folder / RECIPE))
    begun = (folder / "checkpoints" / LAST).is_file()
    return _train(_prepare(recipe, begun), folder)


def whole_paths(recipe: Recipe) -> dict[str, Any]:
    """The recipe's paths from the root, so that a run can be resumed and evaluated from any folder."""
    places = {"data": recipe.data, "data_root": recipe.data_root, "weights": recipe.weights}
    return {
        name: str(Path(place).resolve())
        for name, place in places.items()
        if place is not None and place != "digits" and not is_timm_name(place) and Path(place).exists()
    }


def _prepare(recipe: Recipe, begun: bool = False) -> _Prepared:
    """Try all that can be refused. A run that has begun takes its weights from its checkpoint."""
    check_precision(recipe.precision)
    splits = open_splits(recipe.data, root=recipe.data_root, validation_share=recipe.validation_share, seed=recipe.seed)
    splits = fewer(splits, recipe.training_images, recipe.seed)
    training = make_batches(recipe, splits.train, training=True)
    validation = make_batches(recipe, splits.validation, training=False)
    check_memory(recipe, len(splits.classes), len(splits.train))
    seed_everything(recipe.seed, verbose=False)
    model = build_model(replace(recipe, weights=None) if begun else recipe, len(splits.classes))
    return _Prepared(recipe, splits, model, training, validation)


def _train(prepared: _Prepared, folder: Path) -> dict[str, Any]:
    _quieten()
    recipe, splits, model = prepared.recipe, prepared.splits, prepared.model
    description = describe(recipe, splits.classes)
    last = folder / "checkpoints" / LAST
    if last.is_file():
        check_resumable(last, model, recipe, splits.classes)
    remove_unfinished(last.parent)
    module = Classification(model, recipe, len(splits.classes), len(prepared.training), description)
    history, timer = History(folder), Timer()
    # the order matters: what is measured is in the history before a checkpoint is written
    keep_last = KeepLast(last, recipe.checkpoint_every, prepared.training, fingerprint(splits))
    callbacks = [history, timer, keep_best(last.parent), keep_last, StopAfterStep(last)]
    trainer = _trainer(recipe, folder, callbacks)
    trainer.fit(module, prepared.training, prepared.validation, ckpt_path=last if last.is_file() else None)

    # Lightning leaves the model on the processor
    classifier = Classifier(model.to(best_device()).eval(), recipe, splits.classes)
    judgement = judge(classifier, splits.validation)
    save_classifier(folder / WEIGHTS, model, description)
    draw_curves(history.rows, folder / "curves.png")
    draw_predictions(judgement, splits.validation, splits.classes, folder / "predictions.png")
    write_result(
        folder,
        top1=judgement.top1,
        seconds=timer.time_elapsed("train"),
        images=history.images,
        model=model,
        model_name=recipe.model,
        data=splits.source,
        training_images=len(splits.train),
        validation_images=len(judgement.labels),
        epochs=recipe.epochs,
        unreadable=sorted(history.unreadable | set(judgement.unreadable)),
    )
    return read_result(folder)


def _trainer(recipe: Recipe, folder: Path, callbacks: list[Any]) -> Trainer:
    watched = sys.stderr.isatty()
    return Trainer(
        default_root_dir=folder,
        max_epochs=recipe.epochs,
        precision=recipe.precision,
        accelerator="auto",
        devices=1,
        gradient_clip_val=recipe.clip_gradient,
        callbacks=[*callbacks, *([TQDMProgressBar()] if watched else [])],
        plugins=[WholeFiles()],
        logger=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_progress_bar=watched,
        enable_model_summary=False,
    )


def _quieten() -> None:
    """Lightning's notes on devices and its advertisements; what a user must know, this package says itself."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*Checkpoint directory.*exists and is not empty.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*training_step. returned .None.*",  # a batch without readable images
        ".*dirpath has changed.*",  # a run's folder may be moved
        ".*Glyph .* missing from font.*",  # class names in scripts that the font of the pictures lacks
    ):
        warnings.filterwarnings("ignore", message)
