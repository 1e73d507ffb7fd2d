"""Environment variables that must be set before torch is imported, and fixtures for tests in several folders."""

import gc
import logging
import os

# Some virtual machines report AMX but do not allow it: a bfloat16 matrix product then crashes the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
# The workers of pytest-xdist share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests must not use the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from noise_images import write_two_classes

# Start autograd's engine here: if it first runs inside torch.compile, backward passes fail in processes forked later.
torch.zeros(1, requires_grad=True).sum().backward()

# Fixtures, and the groups of their tests: those of a group run in the same worker of pytest-xdist, so that each fixture
# is created once. Cheaper ones, such as `quick_run`, are not here: their tests can run beside the largest group.
EXPENSIVE_FIXTURES = {
    **dict.fromkeys(("trained_detector", "trained_segmenter"), "runs"),
    **{name: name for name in ("exported_detector", "interpreted", "uninterrupted", "outputs")},
}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    for item in items:
        for group in {EXPENSIVE_FIXTURES[name] for name in EXPENSIVE_FIXTURES if name in item.fixturenames}:
            item.add_marker(pytest.mark.xdist_group(group))
        if item.get_closest_marker("forks"):
            item.add_marker(pytest.mark.skipif(sys.platform != "linux", reason="needs fork, as on Linux"))
            item.add_marker(pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA does not work after a fork"))
    # Groups first, then slow tests: a worker that started them last would run alone. All workers have the same order.
    items.sort(key=lambda item: [bool(item.get_closest_marker(name)) for name in ("xdist_group", "slow")], reverse=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()  # garbage collection of the imported modules would take 5% of the time
    gc.set_threshold(100_000)  # the default takes 6% of the time of tests that trace networks


@pytest.fixture(autouse=True)
def default_signal_handlers() -> None:
    """Restore the default handlers: background shells ignore SIGINT, nohup ignores SIGHUP, torchrun sets its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)


@pytest.fixture(autouse=True)
def free_logging_lock() -> Iterator[None]:
    """A signal in logging's callback of a fork, which a test sends, would leave its lock with this thread for good."""
    yield
    lock: Any = logging._lock
    while lock._is_owned():
        lock.release()


@pytest.fixture(autouse=True)
def skip_drawing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save blank figures, because drawing takes half of the time of a small run; not in tests marked `figures`."""
    if not request.node.get_closest_marker("figures"):
        blank = Image.new("L", (1, 1))
        monkeypatch.setattr(Figure, "savefig", lambda _, file, **__: blank.save(file, "PNG"))


@pytest.fixture(autouse=True)
def number_of_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restore the number of threads. Tests that fork have one: a fork would wait for OpenMP's other threads."""
    num_threads = torch.get_num_threads()
    if request.node.get_closest_marker("forks"):
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six scattered digits for validation instead of 60, which take most of the time of a quick test."""
    from lambdanets.data.coco.scattered_digits import scattered_digits

    splits = scattered_digits("train", 12, 0), scattered_digits("val", 6, 0)
    for module in ("tasks.coco", "inference.coco_predictor"):
        monkeypatch.setattr(f"lambdanets.{module}.open_digits", lambda: splits)


@pytest.fixture
def two_classes(tmp_path: Path) -> Path:
    """A folder with two classes, dark and light, of 10 images each."""
    return write_two_classes(tmp_path / "images")


@pytest.fixture
def quick(two_classes: Path) -> Any:
    """A recipe that trains in about half a second: 3 epochs of 3 steps, with all random augmentations."""
    from training.runs import quick_recipe

    return quick_recipe(two_classes)


@pytest.fixture(scope="module")
def small_lambda_resnet26t() -> Iterator[None]:
    """timm's lambda_resnet26t is small: fewer and narrower blocks, and images of 64 pixels instead of 256."""
    from timm.models import _registry, byoanet

    name, cfgs = "lambda_resnet26t", _registry._model_pretrained_cfgs
    network = byoanet.model_cfgs[name]
    blocks = [replace(block, d=1) for block in network.blocks[:2]]
    with pytest.MonkeyPatch.context() as patch:
        small = replace(network, blocks=(*blocks, *network.blocks[2:]), width_factor=0.25)
        patch.setitem(byoanet.model_cfgs, name, small)
        patch.setitem(cfgs, name, replace(cfgs[name], input_size=(3, 64, 64), pool_size=(2, 2)))
        yield


@pytest.fixture
def timm_network(small_lambda_resnet26t: None) -> Any:
    """A network of timm with lambda layers that affect its output, and three classes."""
    import timm

    torch.manual_seed(0)
    return timm.create_model("lambda_resnet26t", num_classes=3, zero_init_last=False).eval()


@pytest.fixture(scope="session")
def _shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lambdanets.data.datasets import open_splits
    from lambdanets_lab.shards import write_shards

    folder = tmp_path_factory.mktemp("two_classes")
    write_shards(open_splits(str(write_two_classes(folder / "images"))), folder / "shards", images_per_shard=2)
    return folder / "shards"


@pytest.fixture
def shards(_shards: Path, tmp_path: Path) -> Path:
    """The images of `two_classes` in 8 training shards and 2 validation shards of 2 images each."""
    return shutil.copytree(_shards, tmp_path / "shards")


@pytest.fixture(scope="session")
def trained_detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished detection run `run`, its images `digits`, and its initial weights. Read-only.

    The weights are constructed to detect objects, see constructed_detector.py.
    """
    from lambdanets.training import run
    from training.detection.constructed_detector import write_constructed_detector

    folder = tmp_path_factory.mktemp("detector")
    run.start(write_constructed_detector(folder), folder / "run")
    return folder


@pytest.fixture(scope="session")
def trained_segmenter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished segmentation run `run` and its images `digits`. Read-only."""
    from lambdanets.training import run
    from training.segmentation.tiny_segmentation import tiny_segmentation

    folder = tmp_path_factory.mktemp("segmenter")
    run.start(tiny_segmentation(folder / "digits"), folder / "run")
    return folder


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of `quick_recipe`, which classifies two classes. Read-only."""
    from lambdanets.training import run
    from training.runs import quick_recipe

    folder = tmp_path_factory.mktemp("quick")
    run.start(quick_recipe(write_two_classes(folder / "images")), folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def runs(quick_run: Path, trained_detector: Path, trained_segmenter: Path) -> dict[str, Path]:
    """The folder of a finished run of each task. Read-only."""
    folders = {"classification": quick_run, "detection": trained_detector / "run"}
    return folders | {"segmentation": trained_segmenter / "run"}
