"""Which OSErrors are reported in one sentence, and which are bugs and keep their traceback."""

import errno
import os
from pathlib import Path

import pytest
import timm

from lambdanets import cli
from lambdanets.cli import evaluate
from lambdanets.cli.training import report_errors
from lambdanets.errors import InputError


def exit_code_of(error, monkeypatch):
    """The exit code of a command that raises an error."""

    def command(arguments):
        raise error

    monkeypatch.setattr(evaluate, "main", command)
    return cli.main(["evaluate"])


def os_error(number, *filename):
    return OSError(number, os.strerror(number), *filename)


@pytest.mark.parametrize(
    "error",
    [
        os_error(errno.ENOENT, "runs/first/recipe.json"),
        os_error(errno.EACCES, "/data/images"),
        os_error(errno.ENOTDIR, b"photos/a.png/b"),
        os_error(errno.ENOSPC),
        os_error(errno.EMFILE),
    ],
    ids=repr,
)
def test_os_errors_of_user_files_and_the_machine_are_one_sentence(error, monkeypatch, capsys):
    assert exit_code_of(error, monkeypatch) == 2
    place = f"{error.filename}: " if error.filename else ""
    assert capsys.readouterr().err == f"lambdanets: {place}{error.strerror}\n"
    with pytest.raises(InputError), report_errors("lambdanets train", Path("runs/first")):
        raise error


@pytest.mark.parametrize(
    "error",
    [
        os_error(errno.EBADF),
        os_error(errno.EBADF, 7),
        os_error(errno.ENOENT, str(Path(timm.__file__).parent / "missing.json")),
        os_error(errno.ENOENT, str(Path(cli.__file__).with_name("missing.py"))),
        os_error(errno.ENOENT, os.__file__ + ".missing"),
        OSError("handle is closed"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    ],
    ids=repr,
)
def test_os_errors_of_the_program_keep_their_traceback(error, monkeypatch):
    with pytest.raises(OSError, match=error.strerror or "closed") as raised:
        exit_code_of(error, monkeypatch)
    assert raised.value is error
    with pytest.raises(OSError, match=error.strerror or "closed"), report_errors("lambdanets train", Path("run")):
        raise error
