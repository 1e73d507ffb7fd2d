"""Loader workers are shut down, even if they hang while loading an image."""

import multiprocessing
import time
from multiprocessing.synchronize import Semaphore
from typing import Any

import pytest
import torch

from data.test_batches import images, loader
from lambdanets.data import batches as batches_module
from lambdanets.data.labeled_images import LabeledImages


def make_load_hang(monkeypatch: pytest.MonkeyPatch) -> Semaphore:
    """Make `load` of images hang in each worker after 3 images; it then releases the returned semaphore."""
    hanging, load, calls = multiprocessing.Semaphore(0), LabeledImages.load, [0]

    def load_or_hang(self: LabeledImages, index: int) -> Any:
        calls[0] += 1
        if calls[0] > 3 and multiprocessing.parent_process() is not None:
            hanging.release()
            time.sleep(60)
        return load(self, index)

    monkeypatch.setattr(LabeledImages, "load", load_or_hang)
    return hanging


@pytest.mark.parametrize("hangs", [False, True])
def test_exit_shuts_workers_down_and_kills_hanging_ones(monkeypatch: pytest.MonkeyPatch, hangs: bool) -> None:
    hanging = make_load_hang(monkeypatch) if hangs else None
    monkeypatch.setattr(batches_module, "_KILL_AFTER", 0.5 if hangs else 60)
    other_processes = multiprocessing.active_children()
    with loader(images(12), workers=2) as batches:
        next(iter(batches))
        workers = [process for process in multiprocessing.active_children() if process not in other_processes]
        assert len(workers) == 2
        if hanging is not None:
            assert all(hanging.acquire(timeout=30) for _ in workers)
    # PyTorch itself would wait 5 seconds for each worker and then send SIGTERM, which the workers ignore
    assert [worker.exitcode for worker in workers] == [-9 if hangs else 0] * 2


@pytest.mark.forks
def test_a_batch_that_a_worker_cannot_send_ends_the_iteration(capfd: pytest.CaptureFixture[str]) -> None:
    def transform(image: Any, label: Any) -> Any:
        return lambda: image, 0  # pickle refuses it, as a full /dev/shm does tensors

    batches = batches_module.Batches(images(4), transform, batch_size=2, training=True, workers=1)
    with batches, pytest.raises(RuntimeError, match=r"DataLoader worker .* exited unexpectedly"):
        list(batches)
    assert "a data loading worker cannot send a batch: Can't " in capfd.readouterr().err


@pytest.mark.forks
def test_a_batch_may_have_more_tensors_than_the_limit_of_open_files() -> None:
    resource = pytest.importorskip("resource")
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with batches_module.Batches(images(300), lambda *_: (torch.ones(1), 0), batch_size=300, workers=1) as batches:
        assert len(next(iter(batches)).images) == 300
