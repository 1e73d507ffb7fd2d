"""Settings that must precede the import of torch, and fixtures of several folders."""

import gc
import os

# Some virtual machines advertise AMX but forbid its instructions: a bfloat16 product then crashes the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# Two processes of pytest-xdist share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The built-in rates, not those calibrated on this machine.
os.environ["LAMBDANETS_CACHE"] = os.devnull
# Tests do not use the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from noise_images import write_two_classes

# If autograd's engine first runs within a compilation, PyTorch refuses backward passes in processes forked later.
torch.zeros(1, requires_grad=True).sum().backward()

# All tests that use one of these run in the same process of pytest-xdist, so that it is created once.
EXPENSIVE_FIXTURES = {
    *("trained_detector", "interpreted", "uninterrupted", "trained"),
    *("quick_run", "accumulated_run", "frozen_run"),
}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    for item in items:
        for name in EXPENSIVE_FIXTURES.intersection(item.fixturenames):
            item.add_marker(pytest.mark.xdist_group(name))
        if item.get_closest_marker("forks"):
            item.add_marker(pytest.mark.skipif(sys.platform != "linux", reason="systems other than Linux do not fork"))
            item.add_marker(pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA does not survive a fork"))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()  # imported objects stay alive: collecting them again and again takes 5% of the time


@pytest.fixture(autouse=True)
def signal_handlers() -> None:
    """Restore Python's: background shells ignore SIGINT, nohup ignores SIGHUP, and torchrun leaves handlers behind."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)


@pytest.fixture(autouse=True)
def figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Matplotlib's drawing, half of the time of a small run, except in tests marked `figures`."""
    if not request.node.get_closest_marker("figures"):
        blank = Image.new("L", (1, 1))
        monkeypatch.setattr(Figure, "savefig", lambda _, file, **__: blank.save(file, "PNG"))


@pytest.fixture(autouse=True)
def one_thread_before_a_fork(request: pytest.FixtureRequest) -> Iterator[None]:
    """OpenMP's threads do not survive a fork: a forked process would wait for them forever."""
    threads = torch.get_num_threads()
    if request.node.get_closest_marker("forks"):
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def two_classes(tmp_path: Path) -> Path:
    """A folder with 2 classes, dark and light, 10 images each."""
    return write_two_classes(tmp_path / "images")


@pytest.fixture(scope="session")
def _shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lambdanets.data.datasets import open_splits
    from lambdanets.data.shards.writing import write_shards

    folder = tmp_path_factory.mktemp("two_classes")
    write_shards(open_splits(str(write_two_classes(folder / "images"))), folder / "shards", images_per_shard=2)
    return folder / "shards"


@pytest.fixture
def shards(_shards: Path, tmp_path: Path) -> Path:
    """The images of `two_classes` in 8 shards for training and 2 for validation, of 2 images each."""
    return shutil.copytree(_shards, tmp_path / "shards")


@pytest.fixture(scope="session")
def trained_detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished detection run, run/, its images, digits/, and its initial weights. Read-only.

    It detects objects on any processor: see constructed_detector.py.
    """
    from lambdanets.training import run
    from training.detection.constructed_detector import write_constructed_detector

    folder = tmp_path_factory.mktemp("detector")
    run.start(write_constructed_detector(folder), folder / "run")
    return folder


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run of `quick`, a classifier of two classes. Read-only."""
    from lambdanets.training import run
    from training.runs import quick_recipe

    folder = tmp_path_factory.mktemp("quick")
    run.start(quick_recipe(write_two_classes(folder / "images")), folder / "run")
    return folder / "run"
