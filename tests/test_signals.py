"""Signals before, during and after the work of a command."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from lambdanets import cli, signals
from lambdanets.errors import InputError
from lambdanets.files import atomic_open
from lambdanets.work import locked_folder

ALL_SIGNALS = pytest.mark.parametrize("signum", signals.SIGNALS, ids=lambda signum: signum.name)


def run(command):
    """Run a function as a command of the command line; returns the exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(cli.COMMANDS, "try", "")
        patch.setitem(sys.modules, "lambdanets.cli.try", SimpleNamespace(main=lambda arguments: command()))
        return cli.main(["try"])


def run_forked(command, tmp_path):
    """Run a function as a command in a forked process; returns the exit code and the output."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            sys.stdout = sys.stderr = (tmp_path / "log").open("w", buffering=1)
            code = run(command)
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


def test_signal_ignored_at_process_start_stays_ignored(tmp_path, monkeypatch):
    previous_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for background jobs
    try:
        assert run_forked(lambda: send(signal.SIGINT) or 7, tmp_path) == (7, "")
    finally:
        signal.signal(signal.SIGINT, previous_handler)


@ALL_SIGNALS
def test_signal_outside_of_the_command_exits_with_130_silently(signum):
    script = (
        "import os, sys\n"
        "from lambdanets import __main__, cli\n"
        f"cli.main = lambda: os.kill(os.getpid(), {int(signum)})\n"
        "__main__.console()"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")


@ALL_SIGNALS
def test_signal_during_an_atomic_write_keeps_the_previous_file(signum, tmp_path):
    def command():
        with atomic_open(tmp_path / "file") as file:
            file.write(b"new")
            file.flush()
            send(signum)
        raise AssertionError

    (tmp_path / "file").write_bytes(b"old")
    assert run_forked(command, tmp_path) == (130, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "log"]
    assert (tmp_path / "file").read_bytes() == b"old"


@ALL_SIGNALS
def test_signal_while_locked_leaves_no_lock_and_no_empty_folder(signum, tmp_path):
    def command():
        with locked_folder(tmp_path / "new/folder"):
            send(signum)
        raise AssertionError

    assert run_forked(command, tmp_path) == (130, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]


@ALL_SIGNALS
def test_signal_in_a_deferred_block_takes_effect_at_its_end(signum, tmp_path):
    def command():
        with signals.interruptible():
            with signals.deferred():
                send(signum)
                (tmp_path / "done").touch()
            raise AssertionError

    assert run_forked(command, tmp_path) == (130, "")
    assert (tmp_path / "done").exists()


@ALL_SIGNALS
def test_signal_during_work_allows_one_cleanup(signum, tmp_path):
    def command():
        try:
            with signals.resumable("all is kept"), atomic_open(tmp_path / "file"):
                send(signum)
        finally:
            send(signal.SIGTERM)  # job schedulers may send it several times
            (tmp_path / "cleaned").touch()

    code, output = run_forked(command, tmp_path)
    assert (code, output) == (130, "stopped; all is kept; run the same command to resume\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cleaned", "log"]


def test_second_ctrl_c_aborts_the_cleanup(tmp_path):
    def command():
        try:
            with signals.interruptible():
                send(signal.SIGINT)
        finally:
            send(signal.SIGINT)
            (tmp_path / "cleaned").touch()

    assert run_forked(command, tmp_path) == (130, "")
    assert not (tmp_path / "cleaned").exists()


def test_library_error_caused_by_a_signal_exits_with_130(tmp_path):
    def command():
        try:
            with signals.interruptible():
                send(signal.SIGTERM)
        except KeyboardInterrupt as error:
            raise SystemError("initialization of _C raised unreported exception") from error

    assert run_forked(command, tmp_path) == (130, "")


def test_signal_in_a_destructor_is_not_lost(tmp_path):
    class Sender:
        def __del__(self):
            send(signal.SIGTERM)

    def command():
        with signals.resumable("all is kept"):
            Sender()
            time.sleep(60)
        raise AssertionError

    assert run_forked(command, tmp_path) == (130, "stopped; all is kept; run the same command to resume\n")


def test_signal_handlers_are_restored(tmp_path):
    handlers_before = [signal.getsignal(signum) for signum in signals.SIGNALS]
    assert cli.main(["--version"]) == 0
    assert [signal.getsignal(signum) for signum in signals.SIGNALS] == handlers_before


def test_input_error_without_a_signal_exits_with_2():
    def command():
        raise InputError("nothing can be done")

    assert run(command) == 2
