"""Only one process at a time holds the lock of a folder; the lock of a dead process is taken over."""

import contextlib
import multiprocessing
import os
import signal
import time

import pytest

from lambdanets import locks
from lambdanets.locks import LOCK, InUseError, LostLockError, locked, locked_folder

FORK = multiprocessing.get_context("fork")


def hold_lock(folder, ready):
    with locked_folder(folder):
        ready.set()
        time.sleep(60)


def acquire_and_release(folder):
    with locked_folder(folder):
        pass


@pytest.fixture
def owner(tmp_path):
    """A process that has the lock of tmp_path / "work"."""
    ready = FORK.Event()
    process = FORK.Process(target=hold_lock, args=(tmp_path / "work", ready), daemon=True)
    process.start()
    assert ready.wait(30)
    yield process
    process.kill()
    process.join()


def read_pid(lock_file):
    return int(lock_file.read_text().partition("pid=")[2].split()[0])


def change_fields(lock_file, **fields):
    lines = [line.partition("=") for line in lock_file.read_text().splitlines()]
    lock_file.write_text("".join(f"{name}{sign}{fields.get(name, value)}\n" for name, sign, value in lines))


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


def test_lock_of_a_killed_owner_is_taken_over(owner, tmp_path):
    owner.kill()
    owner.join()
    with locked_folder(tmp_path / "work"):
        assert (tmp_path / "work" / LOCK).is_file()


def test_lock_of_a_zombie_is_taken_over(owner, tmp_path):
    os.kill(owner.pid, signal.SIGKILL)
    while "zombie" not in locks.psutil.Process(owner.pid).status():
        time.sleep(0.01)
    with locked_folder(tmp_path / "work") as lock:
        assert read_pid(tmp_path / "work" / LOCK) == os.getpid()
        lock.check()


def test_lock_from_before_a_reboot_is_taken_over(tmp_path):
    with locked_folder(tmp_path):
        text = (tmp_path / LOCK).read_text()
    (tmp_path / LOCK).write_text(text)
    change_fields(tmp_path / LOCK, start="1")  # the process ID of this process, with another start time
    with locked_folder(tmp_path):
        assert "\nstart=1\n" not in (tmp_path / LOCK).read_text()


@pytest.mark.parametrize("alive", [True, False], ids=["alive", "dead"])
def test_waits_for_an_owner_on_another_host_to_expire(alive, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(locks, "EXPIRY_SECONDS", 3.0 if alive else 1.0)  # on a busy machine refreshes may be late
    with locked_folder(tmp_path):
        text = (tmp_path / LOCK).read_text()
    (tmp_path / LOCK).write_text(text)
    change_fields(tmp_path / LOCK, host="elsewhere")
    if alive:
        with (
            pytest.raises(InUseError, match=r"in use by process [0-9]+ on elsewhere; wait for it to end"),
            refreshing(tmp_path),
        ):
            acquire_and_release(tmp_path)
    else:
        acquire_and_release(tmp_path)
    assert f"waiting {3 if alive else 1} s to see if it is alive" in capsys.readouterr().err


def refresh(lock_file, stop):
    while not stop.wait(0.1):
        os.utime(lock_file)


class refreshing:  # noqa: N801 - used as a function
    """Refresh the lock file of a folder from another process within the block."""

    def __init__(self, folder):
        self.stop = FORK.Event()
        self.process = FORK.Process(target=refresh, args=(folder / LOCK, self.stop), daemon=True)

    def __enter__(self):
        self.process.start()

    def __exit__(self, *_):
        self.stop.set()
        self.process.join()


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_lost_lock_is_detected(replaced, tmp_path):
    with locked_folder(tmp_path) as lock:
        lock.check()
        text = (tmp_path / LOCK).read_text()
        (tmp_path / LOCK).rename(tmp_path / "renamed")
        if replaced:
            (tmp_path / LOCK).write_text(text)
            change_fields(tmp_path / LOCK, host="elsewhere")
        with pytest.raises(LostLockError, match="taken over by process .*" if replaced else "lost its"):
            lock.check()
    assert (tmp_path / LOCK).exists() == replaced


def test_dead_owner_is_detected_without_atomic_rename_exchange(owner, tmp_path, monkeypatch):
    monkeypatch.setattr("filelock._soft.exchange_names", lambda *_: False, raising=False)  # as on NFS
    with pytest.raises(InUseError):
        acquire_and_release(tmp_path / "work")
    owner.kill()
    owner.join()
    acquire_and_release(tmp_path / "work")


@pytest.mark.parametrize("text", ["", "filelock/2\npid=12"], ids=["empty", "truncated"])
def test_lock_file_without_an_owner_expires(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(locks, "EXPIRY_SECONDS", 1.0)
    (tmp_path / LOCK).write_text(text)
    acquire_and_release(tmp_path)
    assert not list(tmp_path.iterdir())
    assert "in use by another process; waiting 1 s" in capsys.readouterr().err


def test_await_refresh_false_does_not_wait_for_another_host(tmp_path, capsys):
    with locked_folder(tmp_path):
        text = (tmp_path / LOCK).read_text()
    (tmp_path / LOCK).write_text(text)
    change_fields(tmp_path / LOCK, host="elsewhere")
    with pytest.raises(InUseError, match="on elsewhere"), locked(tmp_path / LOCK, tmp_path, await_refresh=False):
        pass
    assert capsys.readouterr().err == ""


def count_owners(folder, start, owners, max_owners):
    start.wait()
    with contextlib.suppress(InUseError), locked_folder(folder):
        with owners.get_lock():
            owners.value += 1
            max_owners.value = max(max_owners.value, owners.value)
        time.sleep(0.8)  # longer than the others wait for the lock
        with owners.get_lock():
            owners.value -= 1


def test_only_one_of_several_processes_takes_over_a_dead_lock(owner, tmp_path):
    os.kill(owner.pid, signal.SIGKILL)
    while "zombie" not in locks.psutil.Process(owner.pid).status():
        time.sleep(0.01)
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


def test_lock_is_not_inherited_by_forked_workers(owner, tmp_path):
    with locked(tmp_path / "lock", tmp_path):
        worker = FORK.Process(target=time.sleep, args=(60,), daemon=True)
        worker.start()
    with locked(tmp_path / "lock", tmp_path):
        pass
    worker.kill()
    worker.join()


def test_rejects_a_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"folder .*/file/run cannot be created: Not a directory"):
        acquire_and_release(tmp_path / "file/run")
