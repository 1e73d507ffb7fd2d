"""Starts and resumes training runs, and writes the run folder."""

import contextlib
import io
import logging
import sys
import timeit
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.strategies import DDPStrategy

from lambdanets.data.batches import Batches
from lambdanets.data.datasets import is_timm_name
from lambdanets.data.image_search import describe_classes, describe_left_out
from lambdanets.data.images import first_readable
from lambdanets.device import resolve_device
from lambdanets.errors import InputError, first_few
from lambdanets.files import RECIPE, RESULT
from lambdanets.inference.figures import new_figure, save_figure
from lambdanets.models.factory import list_models
from lambdanets.models.weights import WEIGHTS, load_tensors, packaged_models, save_weights, weights_in
from lambdanets.provenance import provenance
from lambdanets.records import read_json, write_json
from lambdanets.signals import check_signals, handle_signals, uninterrupted
from lambdanets.terminal import echo, plural
from lambdanets.training.callbacks import BEST, LAST, Checkpoints, Interrupted, RunLog
from lambdanets.training.checkpoints import AtomicCheckpointIO, find_resumable, read_checkpoint
from lambdanets.training.distributed import World, all_gather_lists, broadcast_from_rank_zero, process_group
from lambdanets.training.initial_weights import build_model, load_initial_weights
from lambdanets.training.micro_batches import Trial, choose_micro_batch
from lambdanets.training.module import EMA, TrainingModule, prepare_batch_norm
from lambdanets.training.recipe import TrainingRecipe, read_recipe, task_class
from lambdanets.training.task import Task
from lambdanets.work import WorkFolder

FINDINGS = "findings.json"  # such as the ids of dropped annotations
TIMED_STEPS = 3  # of a dry run
MAX_IMAGES_ON_CPU = 8  # more do not take less time per image


def start(recipe: TrainingRecipe, folder: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Train a recipe in a run folder and return the result. An unfinished run of the recipe in the folder is resumed.

    Thus the same command can start and restart a run, as torchrun and cluster schedulers require.

    At the start, recipe.json is written into the folder; during training metrics.csv, tensorboard/
    and checkpoints/; at the end weights.safetensors, curves.png, the task's figures and, last, result.json.
    If the run cannot start, no folder is left. quiet: without `describe`, as when several runs share their data.

    Rank zero returns the result, other ranks return {}. Raises InputError for an invalid recipe or a folder with other
    files, InUseError if another process trains in the folder, and KeyboardInterrupt after a signal.
    """
    with process_group() as world, ExitStack() as stack:
        recipe = resolve_recipe(recipe, folder)
        finished = broadcast_from_rank_zero((folder / RESULT).is_file)
        # A finished run reads no paths, and the weights of a resumed one are in its checkpoint: others would silently
        # not be used. It reads its data, and recognizes it even if it was moved.
        identity = recipe.identity(*(recipe.PATHS if finished else ("weights",)))
        run_folder = WorkFolder(folder, identity, RECIPE, lambda file: read_recipe(file).fields())
        if finished:  # the folder may be read-only
            broadcast_from_rank_zero(run_folder.is_started)
            if world.rank == 0:
                echo(f"{folder} is finished; nothing was trained", file=sys.stderr)
        else:
            broadcast_from_rank_zero(lambda: stack.enter_context(run_folder.open()))  # holds its lock
            _train(*prepare(recipe, world, folder), folder, world, quiet)
        advice = "remove it and run the command with --resume to write it again"
        return read_json(folder / RESULT, dict[str, Any], advice) if world.rank == 0 else {}


def dry_run(recipe: TrainingRecipe) -> None:
    """Print `describe`, and data, steps, micro-batches and time of a run, in one line each. Writes no files.

    Without data loading, optimizer and validation, and with the largest images. Raises InputError
    where training would.
    """
    with process_group() as world:
        task, training, _ = prepare(resolve_recipe(recipe), world)
        recipe, steps, accumulation = task.recipe, training.steps_per_epoch, training.batch_slice.accumulation_steps
        images_per_step = sum(recipe.step_sizes(len(task.training)))
        micro_batch = -(-images_per_step // (world.world_size * accumulation))
        device = resolve_device()
        size = micro_batch if device.type == "cuda" else min(micro_batch, MAX_IMAGES_ON_CPU)
        trial = Trial(task, device)
        trial.step(size)  # the first one prepares kernels
        seconds = timeit.timeit(lambda: trial.step(size), number=TIMED_STEPS) / TIMED_STEPS
        seconds *= micro_batch * accumulation / size
        parameters = sum(parameter.numel() for parameter in task.model.parameters())
        ranks = f" on each of {world.world_size} ranks" if world.world_size > 1 else ""
        rows = {
            "data": f"{len(task.training):,} training and {len(task.validation):,} validation images ({task.source})",
            "model": f"{recipe.model}, {parameters / 1e6:.1f} M parameters",
            "steps": f"{steps:,} per epoch, {steps * recipe.epochs:,} in {plural(recipe.epochs, 'epoch')}; "
            f"{plural(images_per_step, 'image')} per step",
            "memory": f"micro-batches of {plural(micro_batch, 'image')} fit, {accumulation} per step{ranks}",
            "speed": f"{1000 * seconds:,.0f} ms per step with the largest image ({device}, {recipe.precision})",
            "time": f"{timedelta(seconds=round(seconds * steps * recipe.epochs))} without data loading and validation",
        }
        if world.rank == 0:
            describe(task)
            echo(*(f"{name:<8}{text}" for name, text in rows.items()))


def absolute_paths(recipe: TrainingRecipe) -> dict[str, Any]:
    """Return the recipe's existing paths as absolute paths; a run then resumes from any working directory."""
    return {
        name: str(Path(path).resolve())
        for name in recipe.PATHS
        if (path := getattr(recipe, name)) and Path(path).exists() and not _is_name(name, path)
    }


def _is_name(field: str, value: str) -> bool:
    """Whether a field is the name of a packaged model or of data, also beside a folder of this name."""
    if field == "weights":
        return value in packaged_models() and weights_in(Path(value)) is None
    return field == "data" and (value == "digits" or (is_timm_name(value) and not Path(value).is_file()))


def resolve_recipe(recipe: TrainingRecipe, folder: Path | None = None) -> TrainingRecipe:
    """Return the recipe with absolute paths, a model name and a precision: bf16-mixed where a GPU supports it, if auto.

    folder: of the run, or none. A started run keeps its precision and micro-batch on another machine.

    All ranks get the recipe of rank zero, with their own paths: $TMPDIR, and what links lead to, differ between nodes.
    Raises InputError if a required field is missing.
    """

    def resolve() -> TrainingRecipe:
        if missing := [name for name in recipe.PATHS if getattr(recipe, name) == ""]:
            options = " ".join(f"--{name.replace('_', '-')} PATH" for name in missing)
            raise InputError(f"{', '.join(missing)} must be given; add {options}")
        stored = recipe
        if folder is not None and (folder / RECIPE).is_file():
            stored = read_recipe(folder / RECIPE)
        precision = stored.precision if recipe.precision == "auto" else recipe.precision
        if precision == "auto":
            on_gpu = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
            precision = "bf16-mixed" if on_gpu else "32-true"
        micro_batch = recipe.micro_batch or stored.micro_batch
        known = replace(recipe, precision=precision, micro_batch=micro_batch)
        resolved = task_class(recipe).resolve(known)
        if not resolved.model:
            raise InputError("model must be given; set --model, such as lambda_resnet50, or --weights of a classifier")
        return resolved

    return replace(broadcast_from_rank_zero(resolve), **absolute_paths(recipe))


def prepare(recipe: TrainingRecipe, world: World, folder: Path | None = None) -> tuple[Task, Batches, Batches]:
    """Open the data, build the model and choose the micro-batch; return the task, training and validation batches.

    Raises InputError if a resolved recipe cannot be trained.
    """
    tasks: list[Task] = []  # rank zero first: if it fails, only its error is reported
    broadcast_from_rank_zero(lambda: tasks.append(open_task(recipe, world, folder)))
    task = tasks[0] if tasks else open_task(recipe, world, folder)
    states = all_gather_lists([(task.fingerprint, task.position)])
    if others := [rank for rank, state in enumerate(states) if state != states[0]]:
        if world.rank:
            raise SystemExit(2)  # rank zero reports the error
        different = "checkpoints" if all(states[rank][0] == states[0][0] for rank in others) else "data"
        raise InputError(f"{different} must be the same on all nodes, got others on the ranks {first_few(others)}")
    batch_slice = choose_micro_batch(task, world)
    task.model = prepare_batch_norm(task.model, recipe, world.world_size)
    batch_size, evaluator = task.EVALUATION_BATCH_SIZE or recipe.batch_size, task.evaluator(task.validation)
    validation = evaluator.batches(batch_size=batch_size, workers=recipe.workers, batch_slice=batch_slice)
    training, position = task.training_batches(batch_slice), task.position
    if position is not None:
        broadcast_from_rank_zero(lambda: training.load_state_dict(position))  # if it fails, only its error is reported
        training.load_state_dict(position)
    return task, training, validation


def open_task(recipe: TrainingRecipe, world: World, folder: Path | None = None) -> Task:
    """Open the data of a recipe, check that images can be read, and build the model.

    Its weights are from the last checkpoint in the run folder, else the recipe's initial weights, else random.
    """
    needs_gpu = recipe.precision == "16-mixed" or (recipe.sync_batch_norm and world.world_size > 1)
    if needs_gpu and resolve_device().type == "cpu":
        raise InputError("precision 16-mixed and sync_batch_norm need a GPU, but PyTorch finds none")
    task = task_class(recipe)(recipe)
    if (count := len(task.validation)) < (ranks := world.world_size):
        raise InputError(f"number of validation images must be at least {ranks}, one per rank, got {count}")
    if world.rank == 0:
        echo(*(f"{name}: {line}" for name, found in task.findings.items() for line in found.lines()), file=sys.stderr)
    for split in ("training", "validation", "test"):
        if (images := getattr(task, split)) is not None:
            first_readable(images.load, range(len(images)), split, recipe.max_unreadable)
    seed_everything(recipe.seed, verbose=False)
    task.model = build_model(recipe, len(task.classes))
    task.checkpoint = find_resumable(folder / "checkpoints", task) if folder is not None else None
    if task.checkpoint is None and recipe.weights is not None:
        with contextlib.redirect_stderr(io.StringIO()) if world.rank else contextlib.nullcontext():
            task.initial_weights = load_initial_weights(task.model, recipe.weights, task.classes)
    return task


def describe(task: Task) -> None:
    """Print the classes, what is left out of the data and, at the start of a run, probable mistakes in the recipe."""
    echo(describe_classes(task.classes), describe_left_out(task.left_out))
    if task.checkpoint is None:
        echo(*_mistakes(task.recipe, len(task.training)), file=sys.stderr)


def _mistakes(recipe: TrainingRecipe, num_images: int) -> Iterator[str]:
    on_avx2 = resolve_device().type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"
    if recipe.precision == "bf16-mixed" and on_avx2:
        yield "precision bf16-mixed is several times as slow as 32-true on a processor without AVX-512"
    if recipe.epochs <= recipe.warmup_epochs:
        warmup = f"warmup_epochs is {recipe.warmup_epochs:g}, and epochs is {recipe.epochs}"
        yield f"{warmup}: the learning rate rises until the end; choose a smaller --warmup-epochs"
    has_decay = any(getattr(recipe, name) != getattr(TrainingRecipe, name) for name in ("decay", "decay_epochs"))
    if has_decay and recipe.schedule != "staircase":
        yield f"decay and decay_epochs have no effect with schedule {recipe.schedule}; choose --schedule staircase"
    if recipe.batch_size > num_images:
        batch = f"batch_size is {recipe.batch_size}, with {plural(num_images, 'training image')}"
        yield f"{batch}: an epoch is one step; choose a smaller --batch-size"


def _train(task: Task, training: Batches, validation: Batches, folder: Path, world: World, quiet: bool) -> None:
    recipe, model = task.recipe, task.model
    # only now, because a refused command must not change the run; it stores the path of moved data
    broadcast_from_rank_zero(lambda: write_json(folder / RECIPE, recipe.fields(), 2))
    if world.rank == 0:
        if not quiet:
            describe(task)
        if any(task.findings.values()):
            write_json(folder / FINDINGS, task.findings)
            echo(f"annotations with problems: {folder / FINDINGS}", file=sys.stderr)
        else:
            (folder / FINDINGS).unlink(missing_ok=True)
    module = TrainingModule(task, training.steps_per_epoch, training.batch_slice)
    if getattr(recipe, "compile", False):  # a field of the tasks whose models can be compiled
        model.compile()
    timer = Timer()
    log = RunLog(folder, task)
    ema = [EMA(recipe.ema_decay)] if recipe.ema_decay is not None else []
    # order: EMA and metrics must update their state before a checkpoint is written
    callbacks = [*ema, log, timer, Checkpoints(folder / "checkpoints", task, training, log)]
    trainer = _make_trainer(recipe, folder, callbacks, world, training.batch_slice.accumulation_steps)
    check_signals()
    # also in a program without handlers, where Lightning would end the process in the middle of a step
    with training, validation, closing(log), handle_signals(), uninterrupted():
        try:
            trainer.fit(module, training, validation, ckpt_path=task.checkpoint)
        except Interrupted:
            raise KeyboardInterrupt from None
    # the other ranks wait: if rank zero fails here, torchrun can restart all ranks
    broadcast_from_rank_zero(lambda: finish(task, folder, log, timer.time_elapsed("train"), world.world_size))


def _make_trainer(
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
    # Checkpoints stops the run: Lightning's handlers can stop in the middle of a step, or wait for other ranks, and
    # its broadcast of signals waits for the GPU before each micro-batch
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


def finish(task: Task, folder: Path, log: RunLog, seconds: float, processes: int) -> None:
    """Write the weights of the trained model, or of the best epoch; evaluate it; write figures, at last result.json."""
    checkpoint = folder / "checkpoints" / (BEST if task.patience else LAST)  # with an EMA, its weights
    load_tensors(task.model, read_checkpoint(checkpoint)[0], str(checkpoint))
    task.model.to(resolve_device()).eval()  # Lightning moves the model to the CPU at the end
    save_weights(folder / WEIGHTS, task.model, task.card().without_paths().to_json())
    recipe, evaluator = task.recipe, task.evaluator(task.validation if task.test is None else task.test)
    batch_size = task.EVALUATION_BATCH_SIZE or recipe.micro_batch or recipe.batch_size
    evaluation = evaluator.evaluate(batch_size=batch_size, workers=recipe.workers)
    evaluator.draw(evaluation, folder)
    draw_curves(log, folder / "curves.png")
    fields = dict(evaluation.scores)
    if task.test is not None:
        values = [value for _, value in log.points("val", task.BEST_METRIC)]
        fields[f"held_out_{task.BEST_METRIC}"] = max(values) if task.patience else values[-1]
    steps, epochs = log.rows[-1][:2]
    first, *others = recipe.step_sizes(len(task.training))
    images = min(steps * first, epochs * len(task.training)) + steps * sum(others)  # the last step may be smaller
    result = {
        "seconds": round(seconds, 2),
        "images_per_second": round(images / seconds, 1) if seconds else 0.0,
        "parameters": sum(parameter.numel() for parameter in task.model.parameters()),
        "model_name": recipe.model,
        "data": task.source,
        "training_images": len(task.training),
        "epochs": epochs,
        "processes": processes,
        "micro_batch": recipe.micro_batch,
        "recipe": recipe.identity(),
        "initial_weights": task.initial_weights,
        "summary": evaluation.lines,
        "unreadable": sorted(log.unreadable | set(evaluation.unreadable)),
        **fields,
        **task.provenance(),
        **provenance(),
    }
    write_json(folder / RESULT, result, 2)


def draw_curves(log: RunLog, path: Path) -> None:
    """Plot each metric in training and in validation against the step."""
    columns = min(len(log.metrics), 4)
    rows = -(-len(log.metrics) // columns)
    figure = new_figure(4.5 * columns, 3.4 * rows)
    for number, name in enumerate(log.metrics, 1):
        axis = figure.add_subplot(rows, columns, number)
        for split, color, marker in (("train", "#94a3b8", None), ("val", "#1d4ed8", "o")):
            if points := log.points(split, name):
                axis.plot(*zip(*points, strict=True), color=color, label=split, marker=marker, markersize=3)
                axis.legend()
        axis.set(xlabel="step", title=name)
        axis.grid(alpha=0.3)
    save_figure(figure, path)
