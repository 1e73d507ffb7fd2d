"""Loader workers are shut down, even if they hang while loading an image."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any

import psutil
import pytest

from data.test_loader import images, loader
from lambdanets.data import batches as batches_module
from lambdanets.data.coco.images import AnnotatedImages
from lambdanets.data.labeled_images import ImageArray, ImageFiles
from lambdanets.data.shards import ShardedImages
from lambdanets.inference import classification, detection
from lambdanets.inference.classifier import Classifier
from lambdanets.inference.detector import Detector
from lambdanets.inference.loading import load
from lambdanets.tasks.coco.task import open_datasets
from lambdanets.tasks.detection.task import make_model_card
from lambdanets_lab.pseudo import labeling
from training.detection.oracle import Oracle
from training.detection.tiny_detection import tiny_recipe
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


def new_children(before: list[psutil.Process]) -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child not in before]


@contextmanager
def kills_two_hanging_workers(hanging: Any) -> Iterator[Callable[..., Any]]:
    """Assert that two hanging workers are killed in the block.

    Yields a function that waits until two workers hang, and then raises StoppedError.
    """
    before = psutil.Process().children()
    workers: list[psutil.Process] = []

    def stop(*_: object) -> None:
        workers.extend(new_children(before))
        assert all(hanging.acquire(timeout=30) for _ in range(2))
        raise StoppedError

    with pytest.raises(StoppedError):
        yield stop
    assert len(workers) == 2
    assert not any(worker.is_running() for worker in workers)


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


def test_failed_evaluation_of_a_classifier_kills_hanging_workers(
    make_load_hang: Callable[[type[Any]], Semaphore], two_classes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted(two_classes.rglob("*.png"))
    classifier = load(write_teacher(tmp_path / "teacher"))
    with kills_two_hanging_workers(make_load_hang(ImageFiles)) as stop:
        monkeypatch.setattr(Classifier, "logits", stop)
        images = ImageFiles(paths, [0] * len(paths))
        classification.ClassificationEvaluator(classifier, images).evaluate(2, workers=2)


def test_failed_pseudo_labeling_kills_hanging_workers(
    make_load_hang: Callable[[type[Any]], Semaphore], shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    select_shards = ShardedImages.select_shards
    monkeypatch.setattr(
        ShardedImages, "select_shards", lambda self, _: select_shards(self, range(8))
    )  # one large shard
    teacher = write_teacher(tmp_path / "teacher")
    with kills_two_hanging_workers(make_load_hang(ShardedImages)) as stop:
        monkeypatch.setattr(Classifier, "probabilities", stop)
        labeling.label_shards(teacher, str(shards), tmp_path / "out", batch_size=2, workers=2)


def test_failed_evaluation_of_a_detector_kills_hanging_workers(
    make_load_hang: Callable[[type[Any]], Semaphore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe(tmp_path / "digits")
    subset = open_datasets(recipe)[0].select([0, 1, 2, 3] * 4)
    categories = subset.annotations.categories
    card = make_model_card(recipe, [category.name for category in categories], [category.id for category in categories])
    detector = Detector(Oracle(subset), card)
    with kills_two_hanging_workers(make_load_hang(AnnotatedImages)) as stop:
        monkeypatch.setattr(Detector, "detect", stop)
        detection.DetectionEvaluator(detector, subset).evaluate(2, workers=2)


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
