"""The command line: a file for each command, which reads options, calls what does the work, and prints.

tyro turns dataclasses into options; what a person got wrong is said in one sentence with exit code 2.
"""

import io
import os
import sys
from collections.abc import Callable, Sequence

from lambdanets import __version__
from lambdanets.cli import benchmark, calibrate, compare, detect, evaluate, predict, pseudo_label, shard, tables, train
from lambdanets.cli.runs import is_out_of_memory
from lambdanets.errors import AnotherRefused, InputError, nearest

COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train.main,
    "evaluate": evaluate.main,
    "predict": predict.main,
    "detect": detect.main,
    "shard": shard.main,
    "pseudo-label": pseudo_label.main,
    "compare": compare.main,
    "tables": tables.main,
    "benchmark": benchmark.main,
    "calibrate": calibrate.main,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for what a person must mend, 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names need not be text
            stream.reconfigure(errors="backslashreplace")
    try:
        return _dispatch(given)
    except InputError as error:
        return _refuse(str(error))
    except AnotherRefused:
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _refuse("out of memory; free some, or choose a smaller model or smaller images")
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if given[0] == "--version":
        print(f"lambdanets {__version__}")
        return 0
    if given[0] not in COMMANDS:
        raise InputError(f"there is no command {given[0]!r}, only {', '.join(COMMANDS)}{nearest(given[0], COMMANDS)}")
    return COMMANDS[given[0]](given[1:])


def _usage() -> str:
    lines = [f"  {name:<14}{(function.__doc__ or '').splitlines()[0]}" for name, function in COMMANDS.items()]
    return "\n".join(
        ["usage: lambdanets COMMAND ...", "", *lines, "", "lambdanets COMMAND --help says what a command takes."]
    )


def _refuse(sentence: str) -> int:
    print(f"lambdanets: {sentence}", file=sys.stderr)
    return 2
