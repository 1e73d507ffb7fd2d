"""Work folders: one process at a time works in them; a signal or a kill leaves work that resumes."""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time

import pytest

from lambdanets import cli, signals
from lambdanets.cli import evaluate
from lambdanets.errors import InputError
from lambdanets.files import atomic_open
from lambdanets.progress import track
from lambdanets.work import LOCK, InUseError, WorkFolder, describe_differences, open_journal

FORK = multiprocessing.get_context("fork")
ALL_SIGNALS = pytest.mark.parametrize("signum", signals.SIGNALS, ids=lambda signum: signum.name)


def open_folder(path, **fields):
    return WorkFolder(path, file="work.json", **fields).open()


def hold_lock(folder, ready, worker):
    with open_folder(folder):
        if (pid := os.fork()) == 0:  # a worker, which outlives its parent if that is killed
            time.sleep(60)
            os._exit(0)
        worker.value = pid
        ready.set()
        time.sleep(60)


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


def test_a_second_process_is_refused_even_if_the_owner_is_stopped(owner, tmp_path):
    os.kill(owner.pid, signal.SIGSTOP)
    with pytest.raises(InUseError, match="work is in use by another"), open_folder(tmp_path / "work"):
        pass


def test_lock_of_a_killed_owner_is_free(owner, tmp_path):
    owner.kill()
    owner.join()
    with open_folder(tmp_path / "work"):
        assert (tmp_path / "work" / LOCK).exists()


def test_a_folder_left_empty_is_removed_with_its_lock(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / LOCK).write_bytes(b"\xff" * 1000)  # left over
    for name in ("a/b", "old"):
        with open_folder(tmp_path / name):
            pass
    with open_folder(tmp_path / "kept"):
        (tmp_path / "kept/file").touch()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "kept", "old"]


def test_folder_of_the_same_work_is_opened_and_another_one_refused(tmp_path):
    (tmp_path / "work.json").write_text(json.dumps({"seed": 1, "more": 2}))
    refused = pytest.raises(InputError, match=r"^seed must be 1, got 2, since .* started so; choose another folder$")
    with refused, open_folder(tmp_path, identity={"seed": 2}):
        pass
    with open_folder(tmp_path, identity={"seed": 1}):
        assert {path.name for path in tmp_path.iterdir()} == {".lock", "work.json"}


def test_files_and_folders_with_other_content_are_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    for path, message in (
        (tmp_path, r"is not empty, it has thesis\.tex; choose another folder, or remove it"),
        (tmp_path / "thesis.tex", r"thesis\.tex must be a folder, got a file; choose another path$"),
        (tmp_path / "thesis.tex/run", r"folder .*/thesis\.tex/run cannot be created: Not a directory"),
    ):
        with pytest.raises(InputError, match=message), open_folder(path):
            pass


def test_differences_are_named_with_short_values():
    actual = {"seed": 1, "files": "a" * 999, "options": {"top": 3, "size": 8}, "more": 1}
    assert describe_differences(actual, {"seed": 1, "options": {"top": 3, "size": 8}}) == ""
    assert describe_differences(actual, {"options": {"top": 3}}) == "size must be 8, got None"
    expected = {"seed": 2, "files": "b" * 999, "options": {"top": 4, "size": 8}, "device": "cpu"}
    differing = describe_differences(actual, expected)
    assert differing.startswith("seed must be 1, got 2, and files must be 'aaa")
    assert "..." in differing
    assert len(differing) < 600
    assert describe_differences({"data": "a" * 40 + "1" + "a" * 40}, {"data": "a" * 81}).count("1") == 1
    assert differing.endswith(", and device must be left out, got 'cpu'")


def write_and_interrupt(path, entries, identity):
    with contextlib.suppress(KeyboardInterrupt), open_journal(path, identity) as journal:
        for entry in entries:
            journal.add(entry)
        raise KeyboardInterrupt


def test_journal_resumes_with_its_entries_and_is_removed_at_the_end(tmp_path):
    path = tmp_path / "out.partial"
    write_and_interrupt(path, [], {"weights": "x"})
    assert not path.exists()
    write_and_interrupt(path, [{"a": 1}, {"a": "\udcff"}], {"weights": "x"})
    refused = pytest.raises(InputError, match=r"^weights must be 'x', got 'z', as in .*; remove it")
    with refused, open_journal(path, {"weights": "z"}):
        pass
    with open_journal(path, {"weights": "x"}) as journal:
        assert journal.entries == [{"a": 1}, {"a": "\udcff"}]
        journal.add({"a": 3})
    assert journal.entries[-1] == {"a": 3}
    assert not path.exists()


@pytest.mark.parametrize("missing_bytes", [1, 5, 11])
def test_truncated_last_line_of_a_journal_is_dropped(missing_bytes, tmp_path):
    path = tmp_path / "out.partial"
    write_and_interrupt(path, [{"a": 1}, {"a": 22222}], {"weights": "x"})
    path.write_bytes(path.read_bytes()[:-missing_bytes])
    with open_journal(path, {"weights": "x"}) as journal:
        assert journal.entries == [{"a": 1}]
        journal.add({"a": 2})
        assert path.read_text().splitlines() == ['{"weights": "x"}', '{"a": 1}', '{"a": 2}']


@pytest.mark.parametrize("content", [b"no JSON\n", b"[1]\n", b"\xff\n"])
def test_damaged_journal_is_refused_and_kept(content, tmp_path):
    path = tmp_path / "out.partial"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is damaged: .*; remove it to restart"), open_journal(path, {"weights": 1}):
        pass
    assert path.read_bytes() == content


def run_forked(command, tmp_path):
    """Run a function as a command in a forked process; returns the exit code and the output."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            sys.stdout = sys.stderr = (tmp_path / "log").open("w", buffering=1)
            evaluate.main = lambda arguments: command()
            code = cli.main(["evaluate"])
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), (tmp_path / "log").read_text()


def send(signum):
    os.kill(os.getpid(), signum)


@ALL_SIGNALS
def test_signal_before_any_work_exits_with_130_silently(signum, tmp_path):
    def command():
        send(signum)
        raise AssertionError

    assert run_forked(command, tmp_path) == (130, "")


def test_signal_ignored_at_process_start_stays_ignored(tmp_path):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for background jobs; reset before the next test
    assert run_forked(lambda: send(signal.SIGINT) or 7, tmp_path) == (7, "")


@ALL_SIGNALS
def test_signal_ends_a_command_between_two_items(signum, tmp_path):
    def command():
        with signals.resumable("all is kept; run again"), open_folder(tmp_path / "new"):
            for item in track("abc", "working", 3, "items"):
                send(signum)
                with atomic_open(tmp_path / item) as file:
                    send(signal.SIGTERM)  # job schedulers may send it several times
                    file.write(b"complete")
        raise AssertionError

    assert run_forked(command, tmp_path) == (130, "stopped; all is kept; run again\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "log"]
    assert (tmp_path / "a").read_bytes() == b"complete"


def test_second_ctrl_c_ends_a_command_at_once(tmp_path):
    def command():
        with atomic_open(tmp_path / "file") as file:
            file.write(b"new")
            send(signal.SIGINT)
            send(signal.SIGINT)
        raise AssertionError

    (tmp_path / "file").write_bytes(b"old")
    assert run_forked(command, tmp_path) == (130, "")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_handlers_of_a_program_are_kept():
    received = []
    previous = signal.signal(signal.SIGUSR2, lambda *_: received.append("program"))
    try:
        with signals.handle_signals():
            send(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, previous)
    assert received == ["program"]
