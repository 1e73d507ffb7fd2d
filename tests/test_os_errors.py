"""OSErrors that a user can fix are reported in one line; others are bugs and keep their traceback."""

import errno
import os

import pytest

from lambdanets import cli
from lambdanets.cli import evaluate
from lambdanets.signals import resumable


def run_failing_command(error, monkeypatch):
    """Run a command that raises an error; returns the exit code."""

    def command(arguments):
        raise error

    monkeypatch.setattr(evaluate, "main", command)
    return cli.main(["evaluate"])


def os_error(code, *filename):
    return OSError(code, os.strerror(code), *filename)


USER_ERRORS = [os_error(errno.ENOENT, "a/recipe.json"), os_error(errno.ENOTDIR, b"a.png/b"), os_error(errno.ENOSPC)]
USER_ERRORS.append(FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"))  # of tempfile
PROGRAM_ERRORS = [os_error(errno.EBADF), OSError("closed"), ConnectionResetError(errno.ECONNRESET, "reset by peer")]


@pytest.mark.parametrize("error", USER_ERRORS, ids=repr)
def test_os_errors_of_user_files_and_the_machine_are_one_line(error, monkeypatch, capsys):
    assert run_failing_command(error, monkeypatch) == 2
    file = f"{os.fsdecode(error.filename)}: " if error.filename else ""
    assert capsys.readouterr().err == f"lambdanets: {file}{error.strerror}\n"


def test_a_failure_of_resumable_work_says_how_to_resume(tmp_path, monkeypatch, capsys):
    def command(arguments):
        with resumable("run it again", tmp_path / arguments[0]):
            raise os_error(errno.ENOSPC)

    (tmp_path / "started").touch()
    monkeypatch.setattr(evaluate, "main", command)
    for file, advice in (("started", "; run it again"), ("missing", "")):
        assert cli.main(["evaluate", file]) == 2
        assert capsys.readouterr().err == f"lambdanets: {os.strerror(errno.ENOSPC)}{advice}\n"


@pytest.mark.parametrize("error", PROGRAM_ERRORS, ids=repr)
def test_os_errors_of_the_program_keep_their_traceback(error, monkeypatch):
    with pytest.raises(OSError, match=error.strerror or "closed") as raised:
        run_failing_command(error, monkeypatch)
    assert raised.value is error
