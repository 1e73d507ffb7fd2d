"""A training run and the folder it leaves."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import Callback, Timer
from torch import nn

from lambdanets.device import best_device, check_precision
from lambdanets.errors import InputError
from lambdanets.files import is_unfinished, printable_bytes, remove_unfinished, write_whole
from lambdanets.models.weights import read_weights
from lambdanets.training.averaging import AverageWeights
from lambdanets.training.checkpoints import (
    BEFORE,
    BEST,
    FREE,
    LAST,
    KeepBest,
    KeepLast,
    check_resumable,
    fingerprint,
    newest,
    what_counts,
)
from lambdanets.training.classification import Classification, prepare_batch_norm
from lambdanets.training.classifier import (
    WEIGHTS,
    Classifier,
    build_model,
    describe,
    save_classifier,
    with_model_of_weights,
)
from lambdanets.training.data.datasets import Splits, fewer, hold_out, open_splits
from lambdanets.training.data.loader import ImageBatches
from lambdanets.training.data.order import Share
from lambdanets.training.data.timm_sets import is_timm_name
from lambdanets.training.division import divided, with_precision
from lambdanets.training.early_stopping import StopEarly
from lambdanets.training.evaluation import judge
from lambdanets.training.feeding import make_batches
from lambdanets.training.history import History
from lambdanets.training.interruption import StopAfterStep
from lambdanets.training.pictures import Curves, draw_curves, draw_predictions
from lambdanets.training.processes import Processes, decided_by_first, first_then_all, joined
from lambdanets.training.pseudo.student_images import open_student_images
from lambdanets.training.recipe import Recipe
from lambdanets.training.report import RESULT, read_result, write_result
from lambdanets.training.speed import Speed
from lambdanets.training.tensorboard import TensorBoard
from lambdanets.training.trainer import make_trainer

RECIPE = "recipe.json"


@dataclass(frozen=True)
class _Prepared:
    """A run that nothing is known to stand against: data opened, model built, transforms made."""

    recipe: Recipe
    splits: Splits
    fingerprint: str
    model: nn.Module
    training: ImageBatches
    validation: ImageBatches
    share: Share


def start(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Train by a recipe into a folder, and return its result; go on where the folder holds a run of the recipe.

    So one command serves to start a run and to start it again, as torchrun and queues of clusters do. The folder gets
    recipe.json at once; metrics.csv, speed.csv, curves.png, tensorboard/ and checkpoints/ while it trains;
    weights.safetensors, predictions.png and, last, result.json. Of several processes only the first returns the
    result, the others an empty one. Raises InputError for what the recipe asks and cannot be done, before the folder is
    made, and when the folder holds something else; Interrupted after Ctrl-C or SIGTERM.
    """
    recipe = given(with_precision(recipe))
    with joined() as these:
        if decided_by_first(lambda: _holds_run(recipe, folder)):
            return _go_on(folder, these, recipe)
        prepared = _prepare(recipe, these)
        decided_by_first(lambda: _make_folder(prepared.recipe, folder))
        return _train(prepared, folder, these)


def check(recipe: Recipe) -> tuple[int, int]:
    """Raise InputError for what the recipe asks and cannot be done; return its classes and training images."""
    with joined() as these:
        splits = _prepare(given(recipe), these).splits
    return len(splits.classes), len(splits.train)


def resume(folder: Path) -> dict[str, Any]:
    """Go on with an unfinished run from its last checkpoint; the result equals that of a run never interrupted.

    A finished run is left alone and its result returned. Raises InputError when the folder is no run's, when its files
    are damaged, and when the data has changed.
    """
    if not (folder / RECIPE).is_file():
        raise InputError(f"{folder} is no folder of a run: it has no {RECIPE}")
    with joined() as these:
        return _go_on(folder, these)


def whole_paths(recipe: Recipe) -> dict[str, Any]:
    """The recipe's paths from the root, so that a run can be resumed and evaluated from any folder."""
    names = ("data", "data_root", "weights", "pseudo_labels", "pseudo_images")
    places = {name: getattr(recipe, name) for name in names}
    return {
        name: str(Path(place).resolve())
        for name, place in places.items()
        if place and place != "digits" and not is_timm_name(place) and Path(place).exists()
    }


def given(recipe: Recipe) -> Recipe:
    """The recipe with whole paths and a model. Raises InputError for what it leaves to be given, and is not."""
    for name in ("data", "weights", "pseudo_labels", "pseudo_images"):
        if getattr(recipe, name) == "":
            raise InputError(f"{name} must be given, such as --{name.replace('_', '-')} FOLDER; the recipe names none")
    if not recipe.model and recipe.weights is None:
        raise InputError(
            "model must be given, such as --model lambda_resnet50; the recipe names neither it nor weights"
        )
    return with_model_of_weights(replace(recipe, **whole_paths(recipe)))


def _holds_run(recipe: Recipe, folder: Path) -> bool:
    """Whether the folder holds a run of the recipe; InputError where it holds another run, or anything else."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder for the run")
    if not folder.is_dir() or all(is_unfinished(path) for path in folder.iterdir()):
        return False
    if not (folder / RECIPE).is_file():
        raise InputError(f"{folder} holds files that are not a run's; name another folder")
    begun = asdict(what_counts(_read_recipe(folder)))
    asked = asdict(what_counts(recipe))
    differ = [f"{name} {begun[name]!r}, not {asked[name]!r}" for name in asked if asked[name] != begun[name]]
    if differ:
        raise InputError(
            f"{folder} holds a run with {', '.join(differ[:5])}; go on with it by --resume, or name another folder"
        )
    return True


def _make_folder(recipe: Recipe, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder} for the run: {error.strerror}") from error
    remove_unfinished(folder)
    write_whole(folder / RECIPE, printable_bytes(recipe.to_json() + "\n"))


def _read_recipe(folder: Path) -> Recipe:
    return Recipe.from_json((folder / RECIPE).read_bytes(), str(folder / RECIPE))


def _go_on(folder: Path, these: Processes, asked: Recipe | None = None) -> dict[str, Any]:
    """Go on by the folder's recipe; what may change meanwhile is as asked, the data's place and max_unreadable too."""
    if decided_by_first((folder / RESULT).is_file):
        return read_result(folder) if these.first else {}
    begun = any((folder / "checkpoints" / name).is_file() for name in (LAST, BEFORE))
    recipe = _read_recipe(folder)
    if asked is not None:
        fields = asdict(asked)
        recipe = replace(recipe, **{name: fields[name] for name in FREE if fields[name] not in (None, "")})
    return _train(_prepare(recipe, these, begun), folder, these)


def _prepare(recipe: Recipe, these: Processes, begun: bool = False) -> _Prepared:
    """Try all that can be refused. A run that has begun takes its weights from its checkpoint."""
    recipe = with_precision(recipe)
    splits, model = first_then_all(lambda: _open(recipe, these, begun))
    recipe, share = divided(recipe, model, len(splits.classes), len(splits.train), these)
    beside = None
    if recipe.pseudo_images is not None and recipe.pseudo_labels is not None:
        soft = recipe.pseudo_targets == "soft"
        beside = open_student_images(recipe.pseudo_images, Path(recipe.pseudo_labels), splits.classes, soft=soft)
    training = make_batches(recipe, splits.train, training=True, share=share, beside=beside)
    validation = make_batches(recipe, splits.validation, training=False, share=share)
    known_by = fingerprint(splits) + (beside.fingerprint if beside is not None else "")
    return _Prepared(recipe, splits, known_by, model, training, validation, share)


def _open(recipe: Recipe, these: Processes, begun: bool) -> tuple[Splits, nn.Module]:
    check_precision(recipe.precision)
    splits = open_splits(recipe.data, root=recipe.data_root, validation_share=recipe.validation_share, seed=recipe.seed)
    splits = fewer(hold_out(splits, recipe.hold_out, recipe.seed), recipe.training_images, recipe.seed)
    if len(splits.validation) < these.count:
        raise InputError(
            f"validation images must be at least {these.count}, one for each process, got {len(splits.validation)}"
        )
    seed_everything(recipe.seed, verbose=False)
    model = build_model(replace(recipe, weights=None) if begun else recipe, len(splits.classes))
    return splits, prepare_batch_norm(model, recipe, these.count)


def _train(prepared: _Prepared, folder: Path, these: Processes) -> dict[str, Any]:
    recipe, splits, model = prepared.recipe, prepared.splits, prepared.model
    description = describe(recipe, splits.classes)
    checkpoints = folder / "checkpoints"
    begun = decided_by_first(lambda: newest(checkpoints))
    if begun is not None:
        check_resumable(begun, model, recipe, splits.classes)
    if these.first:
        for place in (folder, checkpoints):
            remove_unfinished(place)
    module = Classification(
        model, recipe, len(splits.classes), prepared.training.steps, description, share=prepared.share
    )
    if recipe.compile:
        model.compile()
    speed, timer = Speed(folder, these), Timer()
    history = History(folder, these, recipe.max_unreadable, speed.words)
    average = AverageWeights(recipe.average_decay) if recipe.average_decay is not None else None
    # the order matters: what is averaged and measured is in the state before a checkpoint is written
    callbacks: list[Callback] = [average] if average else []
    callbacks += [history, timer]
    callbacks += [TensorBoard(folder, history, speed), Curves(folder, history)] if these.first else []
    callbacks += [StopEarly(recipe.patience)] if recipe.patience else []
    keep_last = KeepLast(checkpoints / LAST, recipe.checkpoint_every, prepared.training, prepared.fingerprint)
    # last, so that what the others do does not count as waiting for data
    callbacks += [KeepBest(checkpoints), keep_last, StopAfterStep(checkpoints / LAST), speed]
    trainer = make_trainer(recipe, folder, callbacks, speed, these, prepared.share.parts)
    try:
        trainer.fit(module, prepared.training, prepared.validation, ckpt_path=begun)
    finally:
        prepared.training.close()
        prepared.validation.close()
    if average:
        average.take(module)
    if recipe.patience:
        model.load_state_dict(read_weights(checkpoints / BEST)[0])
    # the others wait, so that torchrun still has all of them should the first be lost
    result = decided_by_first(lambda: _conclude(prepared, folder, history, timer, description))
    return result if these.first else {}


def _conclude(prepared: _Prepared, folder: Path, history: History, timer: Timer, description: str) -> dict[str, Any]:
    """Measure the trained model and write what a finished run has."""
    recipe, splits, model = prepared.recipe, prepared.splits, prepared.model
    # Lightning leaves the model on the processor
    classifier = Classifier(model.to(best_device()).eval(), recipe, splits.classes)
    measured_on = splits.validation if splits.test is None else splits.test
    judgement = judge(classifier, measured_on)
    save_classifier(folder / WEIGHTS, model, description)
    draw_curves(history.rows, folder / "curves.png")
    draw_predictions(judgement, measured_on, splits.classes, folder / "predictions.png")
    epochs = max(row[1] for row in history.rows)
    held_out = [row[4] for row in history.rows if row[2] == "val"]
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
        **({} if splits.test is None else {"held_out_top1": max(held_out) if recipe.patience else held_out[-1]}),
        epochs=epochs,
        processes=prepared.share.processes,
        micro_batch=recipe.micro_batch,
        unreadable=sorted(history.unreadable | set(judgement.unreadable)),
    )
    return read_result(folder)
