"""Training on several ranks, which are started as by torchrun."""

import contextlib
import io
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.run as torchrun
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.parallel import DistributedDataParallel

from lambdanets import signals
from lambdanets.cli import main
from lambdanets.cli.options import program
from lambdanets.data.order import BatchSlice
from lambdanets.errors import InputError
from lambdanets.recipes.digits import recipe as DIGITS
from lambdanets.training import distributed, run
from lambdanets.training.initial_weights import build_model
from lambdanets.training.module import TrainingModule
from lambdanets.training.recipe import read_recipe
from training.runs import (
    assert_same_result,
    at_step,
    become_rank,
    classification_task,
    exit_codes,
    free_port,
    norms,
    resume,
    run_on_two_ranks,
    train_on_ranks,
)

RECIPE = replace(DIGITS, model="lambda_resnet20_small", batch_size=16, image_size=8, training_images=None)


def gradients(batch_slice: BatchSlice) -> list[torch.Tensor]:
    """Return the gradients of the second step in float64, with micro-batches and with batch norm in eval mode."""
    torch.manual_seed(0)
    model = build_model(RECIPE, 10).double()
    task = classification_task(RECIPE, model)
    module = TrainingModule(task, 1, batch_slice)
    model.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    for norm in norms(model):
        norm.eval()
    batches = list(task.training_batches(batch_slice))[batch_slice.accumulation_steps :]
    step = DistributedDataParallel(_Step(module)) if batch_slice.world_size > 1 else _Step(module)
    for batch in batches[: batch_slice.accumulation_steps]:
        loss = step(batch)
        (loss / batch_slice.accumulation_steps).backward()  # as Lightning does
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


class _Step(nn.Module):
    def __init__(self, module: TrainingModule) -> None:
        super().__init__()
        self.model = module.model
        self._training_step = module.training_step

    def forward(self, batch):
        return self._training_step(batch, 0)["loss"]


def test_gradients_do_not_depend_on_ranks_and_micro_batches(tmp_path):
    expected = gradients(BatchSlice())
    on_two_ranks, _ = run_on_two_ranks(lambda rank: gradients(BatchSlice(rank, 2, accumulation_steps=2)), tmp_path)
    largest = max(gradient.abs().max() for gradient in expected)
    for actual in (on_two_ranks, gradients(BatchSlice(accumulation_steps=4))):
        for whole, divided in zip(expected, actual, strict=True):
            assert (whole - divided).abs().max() < 1e-12 * largest


# 2 epochs of 4 steps, with random augmentations, EMA and micro-batches.
FIELDS = {
    "data": "digits", "training_images": 64, "validation_share": 0.02, "batch_size": 16, "image_size": 8, "epochs": 2,
    "micro_batch": 4, "ema_decay": 0.9, "drop_path": 0.1, "rand_augment": "rand-m5-n1", "checkpoint_every": 3,
}  # fmt: skip
STEPS = 8


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("two") / "uninterrupted"
    assert train_on_ranks(replace(DIGITS, **FIELDS), folder, 2) == [0, 0]
    return folder


def train_and_kill_once(folder: Path) -> None:
    """Train as a rank of torchrun. Before the first restart, the second rank gets SIGKILL in the second epoch."""
    torch.set_num_threads(1)
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        at_step(pytest.MonkeyPatch(), 5, lambda: os.kill(os.getpid(), signal.SIGKILL))
    run.start(replace(DIGITS, **FIELDS), folder)


def run_agent(folder: Path, port: int) -> None:
    """Run torchrun's agent of one of two nodes with one rank each. Ranks are forked, which saves time for imports."""
    rendezvous = {"run_id": "test", "rdzv_backend": "c10d", "rdzv_endpoint": f"127.0.0.1:{port}"}
    config = LaunchConfig(2, 2, 1, **rendezvous, max_restarts=2, monitor_interval=0.1, start_method="fork")
    elastic_launch(config, train_and_kill_once)(folder)


@pytest.mark.slow
@pytest.mark.forks
def test_elastic_restart_is_bit_identical(uninterrupted, tmp_path):
    assert exit_codes(run_agent, [(tmp_path / "restarted", free_port())] * 2) == [0, 0]
    assert_same_result(uninterrupted, tmp_path / "restarted")


@pytest.mark.slow
@pytest.mark.forks
def test_run_of_two_ranks_resumes_with_one(uninterrupted, tmp_path):
    folder = tmp_path / "fewer"
    assert 0 not in train_on_ranks(replace(DIGITS, **FIELDS), folder, 2, kill_at=7)
    assert torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 6
    assert resume(folder)["processes"] == 1
    rows = (folder / "metrics.csv").read_text().splitlines()
    expected_rows = (uninterrupted / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[:3] for row in rows] == [row.split(",")[:3] for row in expected_rows]


@pytest.mark.forks
def test_ranks_have_their_own_paths_of_the_data(tmp_path):
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        path.mkdir()
    resolved = run_on_two_ranks(lambda rank: run.resolve_recipe(replace(RECIPE, data=str(paths[rank]))).data, tmp_path)
    assert resolved == [str(path) for path in paths]


@pytest.mark.forks
def test_nodes_with_other_data_or_another_checkpoint_are_refused(tmp_path, monkeypatch):
    def prepare(rank: int) -> None:
        monkeypatch.setattr(run, "find_resumable", lambda folder, task: setattr(task, "position", positions[rank]))
        recipes = [(RECIPE, {"steps": 3}, None), (RECIPE, {"steps": 3}, {"steps": 2}), (replace(RECIPE, seed=rank),)]
        for recipe, *positions in recipes:
            folder = tmp_path if positions else None
            message = f"{'checkpoints' if folder else 'data'} must be the same on all nodes, got others on the ranks 1"
            with pytest.raises(SystemExit if rank else InputError, match="2" if rank else message):
                run.prepare(recipe, distributed.World(rank, 2), folder)

    run_on_two_ranks(prepare, tmp_path)


def train_command_on_rank(rank: int, recipe: str, folder: Path) -> tuple[int, str]:
    """Run a training command on one of two ranks; return its exit code and stderr."""
    become_rank(rank)
    with contextlib.redirect_stderr(io.StringIO()) as output:
        try:
            return main(["train", recipe, "--run", str(folder)]), output.getvalue()
        except SystemExit as end:  # of a rank that reports nothing
            return end.code, output.getvalue()


@pytest.mark.forks
@pytest.mark.parametrize(
    ("recipe", "message"),
    [("digits", "thesis is not empty, it has thesis.tex;"), ("objects", "validation_data must be given;")],
)
def test_input_error_of_two_ranks_is_printed_once(recipe, message, tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    first, second = run_on_two_ranks(lambda rank: train_command_on_rank(rank, recipe, folder), tmp_path)
    assert first[0] == 2
    assert message in first[1]
    assert second == (2, "")


@pytest.mark.slow
def test_launch_returns_the_exit_code_of_its_ranks(capfd):
    assert distributed.launch(2, ["train", "nothing of this name"]) == 2
    assert "Traceback" not in capfd.readouterr().err


def test_launch_leaves_the_signals_alone_that_nohup_ignores(monkeypatch):
    handled = []
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(torchrun, "run", lambda options: handled.append(options.signals_to_handle))
    monkeypatch.setattr(signal, "getsignal", lambda signum: signal.SIG_IGN if signum == signal.SIGHUP else None)
    distributed.launch(1, [])
    assert handled == ["SIGINT,SIGTERM,SIGUSR1,SIGUSR2,SIGQUIT"]


def test_ranks_that_a_user_has_started_are_resumed_by_the_same_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "recipe.json").touch()
    monkeypatch.setattr(run, "start", lambda *_: (tmp_path / "nothing").stat())  # which fails
    for ranks, how in ((2, " the same command\n"), (1, f": {program()} train --resume {tmp_path}\n")):
        monkeypatch.setattr(distributed, "get_world", lambda ranks=ranks: distributed.World(world_size=ranks))
        assert main(["train", "digits", "--run", str(tmp_path)]) == 2
        assert capsys.readouterr().err.endswith(f"; resume with{how}")


def run_command_until_sigterm(*arguments: str) -> None:
    """Run a command as a rank. At step 5 the first rank sends SIGTERM to torchrun's agent, which forwards it to all."""
    for signum in (signal.SIGINT, signal.SIGTERM):  # the default handlers, as in a new process
        signal.signal(signum, signal.SIG_DFL)
    torch.set_num_threads(1)
    sent: list[None] = []

    def send_sigterm() -> None:
        if not sent:  # only in the first micro-batch of the step
            sent.append(os.kill(os.getppid(), signal.SIGTERM))
            while not signals.arrived:  # forwarded by the agent
                time.sleep(0.01)

    if os.environ["RANK"] == "0":
        at_step(pytest.MonkeyPatch(), 5, send_sigterm)
    assert arguments[:3] == ("-u", "-m", "lambdanets")
    sys.exit(main(list(arguments[3:])))


def launch_and_stop(arguments: list[str]) -> None:
    """Launch two forked ranks and exit with the exit code of the launcher."""
    torchrun.elastic_launch = lambda config, entrypoint: elastic_launch(
        replace(config, start_method="fork"), run_command_until_sigterm
    )
    sys.exit(distributed.launch(2, arguments))


@pytest.mark.slow
@pytest.mark.forks
def test_two_ranks_resume_bit_identically_after_sigterm(uninterrupted, tmp_path, capfd):
    folder = tmp_path / "stopped"
    options = [f"--{name.replace('_', '-')}={value}" for name, value in FIELDS.items()]
    arguments = ["train", "digits", *options, "--workers", "1", "--devices", "2", "--run", str(folder)]
    assert exit_codes(launch_and_stop, [(arguments,)]) == [130]
    output = capfd.readouterr().err
    # printed only if the ranks stop before torchrun kills them
    assert f"lambdanets train --resume {folder} --devices 2" in output
    assert not (folder / "result.json").exists()
    assert "Traceback" not in output, output[-2000:]
    content = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
    assert content["global_step"] < STEPS
    recipe = read_recipe(folder / "recipe.json")
    assert recipe.workers == 1
    assert train_on_ranks(recipe, folder, 2) == [0, 0]
    assert_same_result(uninterrupted, folder)
    assert json.loads((folder / "result.json").read_text())["processes"] == 2
