"""The README's code and commands are what they say."""

import re
import shlex
from pathlib import Path

import pytest
import tyro

from lambdanets.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)
SHELL = [line for kind, block in BLOCKS if not kind for line in block.splitlines()]
SHELL += re.findall(r"`(lambdanets [^`]*)`", README)


def test_the_python_examples_run_and_print_the_shapes_they_say(capsys):
    example, resizing = [block for kind, block in BLOCKS if kind == "python" and "ln.load" not in block]
    exec(resizing, names := {})
    assert {tuple(p.shape) for n, p in names["model"].named_parameters() if n.endswith("table")} == {(23, 23, 16)}
    exec(example, {})
    assert "[2, 64, 29, 20]" in capsys.readouterr().out
    assert len([line for line in example.splitlines() if line and not line.startswith("import")]) <= 10


class TakenError(Exception):
    """The options of a command were parsed."""


@pytest.mark.parametrize("command", [line for line in SHELL if line.startswith("lambdanets ")])
def test_every_command_is_taken(command, monkeypatch):
    parse = tyro.cli

    def taken(*given, **more):
        _, unknown = parse(*given, **more)
        assert not unknown
        raise TakenError

    monkeypatch.setattr(tyro, "cli", taken)
    arguments = shlex.split(command, comments=True)[1:]
    if "--help" in arguments:
        with pytest.raises(SystemExit, match="0"):
            main(arguments)
    else:
        with pytest.raises(TakenError):
            main(arguments)
