"""Only one process at a time holds the lock of a folder; that of a dead process is free."""

import contextlib
import multiprocessing
import os
import signal
import time

import pytest

from lambdanets.work import LOCK, InUseError, locked_folder

FORK = multiprocessing.get_context("fork")


def hold_lock(folder, ready, worker):
    with locked_folder(folder):
        if (pid := os.fork()) == 0:  # a worker, which outlives its parent if that is killed
            time.sleep(60)
            os._exit(0)
        worker.value = pid
        ready.set()
        time.sleep(60)


def acquire_and_release(folder):
    with locked_folder(folder):
        pass


@pytest.fixture
def owner(tmp_path):
    """A process with a forked worker that has the lock of tmp_path / "work"."""
    ready, worker = FORK.Event(), FORK.Value("i", 0)
    process = FORK.Process(target=hold_lock, args=(tmp_path / "work", ready, worker), daemon=True)
    process.start()
    assert ready.wait(30)
    yield process
    process.kill()
    process.join()
    os.kill(worker.value, signal.SIGKILL)


def test_error_of_a_second_process_names_the_owner(owner, tmp_path):
    with pytest.raises(InUseError, match=rf"work is in use by process {owner.pid} on .*, running since 20"):
        acquire_and_release(tmp_path / "work")


def test_lock_is_not_reentrant(tmp_path):
    with locked_folder(tmp_path), pytest.raises(InUseError):
        acquire_and_release(tmp_path)


def test_stopped_owner_keeps_its_lock(owner, tmp_path):
    os.kill(owner.pid, signal.SIGSTOP)
    with pytest.raises(InUseError):
        acquire_and_release(tmp_path / "work")
    os.kill(owner.pid, signal.SIGCONT)


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
def test_lock_of_a_killed_owner_is_free(reaped, owner, tmp_path):
    os.kill(owner.pid, signal.SIGKILL)
    os.waitid(os.P_PID, owner.pid, os.WEXITED | os.WNOWAIT)
    if reaped:
        owner.join()
    with locked_folder(tmp_path / "work"):
        assert f"process {os.getpid()} " in (tmp_path / "work" / LOCK).read_text()


@pytest.mark.parametrize("content", [b"", b"process 1 on elsewhere", b"\xff" * 1000], ids=["empty", "other", "binary"])
def test_left_over_lock_file_is_free_whatever_it_contains(content, tmp_path):
    (tmp_path / LOCK).write_bytes(content)
    acquire_and_release(tmp_path)
    assert not list(tmp_path.iterdir())


def count_owners(folder, start, owners, max_owners):
    start.wait()
    with contextlib.suppress(InUseError), locked_folder(folder):
        with owners.get_lock():
            owners.value += 1
            max_owners.value = max(max_owners.value, owners.value)
        time.sleep(0.3)
        with owners.get_lock():
            owners.value -= 1


def test_only_one_of_several_processes_gets_the_lock_of_a_dead_owner(owner, tmp_path):
    owner.kill()
    owner.join()
    start, owners, max_owners = FORK.Event(), FORK.Value("i", 0), FORK.Value("i", 0)
    arguments = tmp_path / "work", start, owners, max_owners
    processes = [FORK.Process(target=count_owners, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join()
    assert max_owners.value == 1


def test_lock_leaves_no_file_and_no_empty_folder(tmp_path):
    acquire_and_release(tmp_path / "a/b")
    with locked_folder(tmp_path / "kept"):
        (tmp_path / "kept/file").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "kept"]


def test_rejects_a_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"folder .*/file/run cannot be created: Not a directory"):
        acquire_and_release(tmp_path / "file/run")
