"""Loader workers are shut down, even if they hang while loading an image."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any

import psutil
import pytest

from data.test_batches import images, loader
from lambdanets.data import batches as batches_module
from lambdanets.data.labeled_images import ImageArray, ImageFiles
from lambdanets.inference.classifier import ClassificationEvaluator, Classifier
from lambdanets.inference.loading import load
from training.teachers import write_teacher


class StoppedError(Exception):
    pass


@pytest.fixture
def make_load_hang(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Any]], Semaphore]:
    """A function that makes `load` of a class hang in each worker after 3 images.

    It returns a semaphore, which each hanging worker releases once.
    """

    def patch(image_type: type[Any]) -> Semaphore:
        hanging, load, calls = multiprocessing.Semaphore(0), image_type.load, [0]

        def load_or_hang(self: Any, index: int) -> Any:
            calls[0] += 1
            if calls[0] > 3 and multiprocessing.parent_process() is not None:
                hanging.release()
                time.sleep(60)
            return load(self, index)

        monkeypatch.setattr(image_type, "load", load_or_hang)
        monkeypatch.setattr(batches_module, "_KILL_AFTER", 0.5)
        return hanging

    return patch


@pytest.mark.parametrize("hangs", [False, True])
def test_close_shuts_workers_down_and_kills_hanging_ones(
    make_load_hang: Callable[[type[Any]], Semaphore], hangs: bool
) -> None:
    hanging = make_load_hang(ImageArray) if hangs else None
    other_processes = multiprocessing.active_children()
    batches = loader(images(12), workers=2)
    next(iter(batches))
    workers = [process for process in multiprocessing.active_children() if process not in other_processes]
    assert len(workers) == 2
    if hanging is not None:
        assert all(hanging.acquire(timeout=30) for _ in workers)
    batches.close()
    # PyTorch itself would wait 5 seconds for each worker and then send SIGTERM, which the workers ignore
    assert [worker.exitcode for worker in workers] == [-9 if hangs else 0] * 2


def test_a_failed_evaluation_kills_hanging_workers(
    make_load_hang: Callable[[type[Any]], Semaphore], two_classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(two_classes.rglob("*.png"))
    classifier, hanging = load(write_teacher(tmp_path / "teacher")), make_load_hang(ImageFiles)
    before, workers = psutil.Process().children(), []

    def stop(*_: object) -> None:
        workers.extend(child for child in psutil.Process().children() if child not in before)
        assert all(hanging.acquire(timeout=30) for _ in range(2))
        raise StoppedError

    monkeypatch.setattr(Classifier, "logits", stop)
    with pytest.raises(StoppedError):
        ClassificationEvaluator(classifier, ImageFiles(paths, [0] * len(paths))).evaluate(2, workers=2)
    assert len(workers) == 2
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.forks
def test_hanging_workers_exit_after_their_parent_is_killed(make_load_hang: Callable[[type[Any]], Semaphore]) -> None:
    hanging = make_load_hang(ImageArray)

    def iterate() -> None:
        list(loader(images(12), workers=2))

    parent = multiprocessing.get_context("fork").Process(target=iterate)
    parent.start()
    assert all(hanging.acquire(timeout=30) for _ in range(2))
    workers = psutil.Process(parent.pid).children()
    assert len(workers) == 2
    os.kill(parent.pid or 0, signal.SIGKILL)
    parent.join()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive
