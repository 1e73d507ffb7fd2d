"""A training run and the folder it leaves."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, Timer

from lambdanets.data.batches import Batches
from lambdanets.data.order import BatchSlice
from lambdanets.data.timm_sets import is_timm_name
from lambdanets.device import check_precision
from lambdanets.errors import InputError
from lambdanets.files import remove_unfinished
from lambdanets.folders import WorkFolder
from lambdanets.inference.weights import WEIGHTS, save_weights
from lambdanets.locks import Lock
from lambdanets.models.weights import read_weights
from lambdanets.records import write_json
from lambdanets.training.callbacks import EMA, KeepBest, KeepLast, StopEarly, StopOnSignal
from lambdanets.training.checkpoints import BEFORE, BEST, LAST, check_resumable, newest
from lambdanets.training.curves import Curves, TensorBoard, draw_curves
from lambdanets.training.metrics_log import MetricsLog
from lambdanets.training.micro_batches import AnyRecipe, with_micro_batch, with_precision
from lambdanets.training.module import synchronized
from lambdanets.training.processes import Processes, broadcast_from_rank_zero, process_group, rank_zero_first
from lambdanets.training.recipe import TrainingRecipe
from lambdanets.training.report import RESULT, read_result, write_result
from lambdanets.training.speed import Speed
from lambdanets.training.task import Task
from lambdanets.training.tasks import read_recipe, task_of
from lambdanets.training.trainer import make_trainer

RECIPE = "recipe.json"


@dataclass(frozen=True)
class _Prepared:
    """A run that nothing is known to stand against: data opened, model built, transforms made."""

    task: Task
    recipe: TrainingRecipe
    batch_slice: BatchSlice
    training: Batches[Any]
    validation: Batches[Any]


def start(recipe: TrainingRecipe, folder: Path) -> dict[str, Any]:
    """Train by a recipe into a folder, and return its result; go on where the folder holds a run of the recipe.

    So one command serves to start a run and to start it again, as torchrun and queues of clusters do. The folder gets
    recipe.json at once; metrics.csv, speed.csv, curves.png, tensorboard/ and checkpoints/ while it trains;
    weights.safetensors, the task's pictures and, last, result.json. Of several processes only the first returns the
    result, the others an empty one. Raises InputError for what the recipe asks and cannot be done, and when the folder
    holds something else, InUseError when another process trains into it; Interrupted after a signal. No new folder is
    left when nothing could be begun.
    """
    recipe = given(with_precision(recipe))
    with process_group() as these:
        place = _run_folder(folder, recipe)
        if broadcast_from_rank_zero(place.is_begun) and _is_finished(folder):
            return _result_in(folder, these)
        with _locked(place) as lock:
            if broadcast_from_rank_zero(place.is_begun):
                return _go_on(folder, these, lock, recipe)
            prepared = _prepare(recipe, these)
            broadcast_from_rank_zero(lambda: _write_recipe(prepared.recipe, folder))
            return _train(prepared, folder, these, lock)


def check(recipe: TrainingRecipe) -> Task:
    """The opened task of a recipe. Raises InputError for what it asks and cannot be done."""
    with process_group() as these:
        return _prepare(given(recipe), these).task


def resume(folder: Path) -> dict[str, Any]:
    """Go on with an unfinished run from its last checkpoint; the result equals that of a run never interrupted.

    A finished run is left alone and its result returned. Raises InputError when the folder is no run's, when its files
    are damaged, when the data has changed, and, as InUseError, when another process trains into it.
    """
    if not (folder / RECIPE).is_file():
        raise InputError(f"{folder} is no folder of a run: it has no {RECIPE}")
    with process_group() as these:
        if _is_finished(folder):  # without its lock: it may lie where nothing can be written
            return _result_in(folder, these)
        with _locked(_run_folder(folder)) as lock:
            return _go_on(folder, these, lock)


def absolute_paths(recipe: TrainingRecipe) -> dict[str, Any]:
    """The recipe's paths from the root, so that a run can be resumed and evaluated from any folder."""
    places = {name: getattr(recipe, name) for name in recipe.PLACES}
    return {
        name: str(Path(place).resolve())
        for name, place in places.items()
        if place and place != "digits" and not is_timm_name(place) and Path(place).exists()
    }


def given(recipe: AnyRecipe) -> AnyRecipe:
    """The recipe with whole paths and a model. Raises InputError for what it leaves to be given, and is not."""
    for name in recipe.REQUIRED:
        if getattr(recipe, name) == "":
            raise InputError(f"{name} must be given, such as --{name.replace('_', '-')} PATH; the recipe names none")
    if not recipe.model and recipe.weights is None:
        raise InputError(
            "model must be given, such as --model lambda_resnet50; the recipe names neither it nor weights"
        )
    return task_of(recipe).given(replace(recipe, **absolute_paths(recipe)))


def _run_folder(folder: Path, recipe: TrainingRecipe | None = None) -> WorkFolder:
    """The folder of a run of the recipe, or of any recipe."""

    def found(folder: Path) -> dict[str, Any] | None:
        if not (folder / RECIPE).is_file():
            return None
        existing = read_recipe(folder / RECIPE)
        if recipe is not None and existing.task != recipe.task:
            raise InputError(f"{folder} holds a run of {existing.task}, not of {recipe.task}; name another folder")
        return asdict(existing.without_free_fields())

    identity = asdict(recipe.without_free_fields()) if recipe is not None else {}
    return WorkFolder(folder, "a run", identity, found, "resume it with --resume, or name another folder")


@contextmanager
def _locked(folder: WorkFolder) -> Iterator[Lock | None]:
    """Hold the folder's lock in the first process, for all of them; the others get None."""
    with ExitStack() as stack:
        locks: list[Lock] = []
        broadcast_from_rank_zero(lambda: locks.append(stack.enter_context(folder.open())))
        yield locks[0] if locks else None


def _write_recipe(recipe: TrainingRecipe, folder: Path) -> None:
    write_json(folder / RECIPE, recipe.fields(), 2)


def _is_finished(folder: Path) -> bool:
    return broadcast_from_rank_zero((folder / RESULT).is_file)


def _result_in(folder: Path, these: Processes) -> dict[str, Any]:
    """The result of a finished run in the first process, and an empty one in the others."""
    return read_result(folder, task_of(read_recipe(folder / RECIPE)).RESULT) if these.is_rank_zero else {}


def _go_on(folder: Path, these: Processes, lock: Lock | None, asked: TrainingRecipe | None = None) -> dict[str, Any]:
    """Go on by the folder's recipe; what may change meanwhile is as asked, the data's place and max_unreadable too."""
    if _is_finished(folder):  # by another process, until just now
        return _result_in(folder, these)
    recipe = read_recipe(folder / RECIPE)
    begun = any((folder / "checkpoints" / name).is_file() for name in (LAST, BEFORE))
    before = recipe
    if asked is not None:
        fields = asdict(asked)
        recipe = replace(recipe, **{name: fields[name] for name in recipe.FREE if fields[name] not in (None, "")})
    prepared = _prepare(recipe, these, begun)
    if prepared.recipe != before:  # so that --resume and evaluation find the data where it lies now
        broadcast_from_rank_zero(lambda: _write_recipe(prepared.recipe, folder))
    return _train(prepared, folder, these, lock)


def _prepare(recipe: TrainingRecipe, these: Processes, begun: bool = False) -> _Prepared:
    """Try all that can be refused. A run that has begun takes its weights from its checkpoint."""
    recipe = with_precision(recipe)
    task = rank_zero_first(lambda: _open(recipe, these, begun))
    recipe, batch_slice = with_micro_batch(recipe, task.probe(), task.model, task.training_images, these)
    task.model = synchronized(task.model, recipe, these.world_size)
    training, validation = task.batches(recipe, batch_slice)
    return _Prepared(task, recipe, batch_slice, training, validation)


def _open(recipe: TrainingRecipe, these: Processes, begun: bool) -> Task:
    check_precision(recipe.precision)
    task = task_of(recipe).opened(recipe, these, begun)
    if task.validation_images < these.world_size:
        raise InputError(
            f"validation images must be at least {these.world_size}, one for each process, got {task.validation_images}"
        )
    return task


def _train(prepared: _Prepared, folder: Path, these: Processes, lock: Lock | None) -> dict[str, Any]:
    task, recipe, model = prepared.task, prepared.recipe, prepared.task.model
    checkpoints = folder / "checkpoints"
    begun = broadcast_from_rank_zero(lambda: newest(checkpoints))
    resumed_at = 0 if begun is None else check_resumable(begun, model, recipe, task.classes)
    if these.is_rank_zero:
        remove_unfinished(checkpoints)
        task.begin(folder)
    module = task.module(recipe, prepared.training.steps_per_epoch, prepared.batch_slice)
    if recipe.compile:
        model.compile()
    speed, timer = Speed(folder, these), Timer()
    log = MetricsLog(folder, task.METRICS, these, recipe.max_unreadable, speed.format)
    ema = EMA(recipe.ema_decay) if recipe.ema_decay is not None else None
    # the order matters: what is averaged and measured is in the state before a checkpoint is written
    callbacks: list[Callback] = [ema] if ema else []
    callbacks += [log, timer]
    callbacks += [Curves(folder, log, task.PANELS)] if these.is_rank_zero else []
    callbacks += [StopEarly(task.BEST, task.patience)] if task.patience else []
    keep_last = KeepLast(checkpoints / LAST, recipe.checkpoint_every, prepared.training, task.fingerprint)
    # last, so that what the others do does not count as waiting for data
    stop = StopOnSignal(checkpoints / LAST, lock)
    callbacks += [KeepBest(checkpoints, task.BEST), keep_last, stop, speed]
    logger = TensorBoard(folder, resumed_at)
    parts = prepared.batch_slice.accumulation_steps
    trainer = make_trainer(recipe, folder, callbacks, speed, logger, these, parts, lock)
    try:
        with stop.handling():
            trainer.fit(module, prepared.training, prepared.validation, ckpt_path=begun)
    finally:
        prepared.training.close()
        prepared.validation.close()
    if ema:
        ema.copy_to(module)
    if task.patience:
        model.load_state_dict(read_weights(checkpoints / BEST)[0])
    # the others wait, so that torchrun still has all of them should the first be lost
    result = broadcast_from_rank_zero(lambda: _conclude(prepared, folder, lock, log, timer))
    return result if these.is_rank_zero else {}


def _conclude(prepared: _Prepared, folder: Path, lock: Lock | None, log: MetricsLog, timer: Timer) -> dict[str, Any]:
    """Measure the trained model and write what a finished run has."""
    task, recipe = prepared.task, prepared.recipe
    if lock is not None:
        lock.check()
    concluded = task.conclude(recipe, folder, log)
    save_weights(folder / WEIGHTS, task.model, task.description(recipe))
    draw_curves(log.rows, log.metrics, task.PANELS, folder / "curves.png")
    write_result(
        folder,
        seconds=timer.time_elapsed("train"),
        trained_images=log.images,
        model=task.model,
        model_name=recipe.model,
        data=task.source,
        training_images=task.training_images,
        epochs=max(row[1] for row in log.rows),
        processes=prepared.batch_slice.world_size,
        micro_batch=recipe.micro_batch,
        **concluded | {"unreadable": sorted(log.unreadable | set(concluded["unreadable"]))},
    )
    return read_result(folder, task.RESULT)
