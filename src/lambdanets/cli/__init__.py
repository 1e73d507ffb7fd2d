"""The command line: a file for each command, which reads options, calls what does the work, and prints.

tyro turns dataclasses into options; what a person got wrong is said in one sentence with exit code 2. A command's file
is imported when the command is given, and PyTorch when there is work for it: help and refusals do not wait for them.
"""

import importlib
import io
import os
import sys
from collections.abc import Sequence

from lambdanets import __version__, signals
from lambdanets.errors import InputError, RankZeroFailed, is_for_user, is_out_of_memory, nearest
from lambdanets.terminal import say

# Name -> its line of the help. The command is `main` in the file of that name.
COMMANDS = {
    "train": "Train by a recipe: lambdanets train [RECIPE] [--run DIR] [--FIELD VALUE ...], or --resume DIR.",
    "evaluate": "Measure a trained model's top-1 on the validation part of a data set: lambdanets evaluate CHECKPOINT.",
    "predict": "Classify image files: lambdanets predict CHECKPOINT IMAGES... takes files, folders and globs.",
    "detect": "Find objects and their masks, by Mask R-CNN: lambdanets detect train | evaluate | predict | report.",
    "shard": "Write images into shards, check or list them: lambdanets shard FOLDER OUT.",
    "pseudo-label": "Label images for a student: lambdanets pseudo-label TEACHER SHARDS OUT, or select LABELS OUT.",
    "compare": "Train variants of a network alike, over seeds: lambdanets compare STUDIES [RECIPE], or --resume DIR.",
    "tables": "Show the paper's tables beside ours: lambdanets tables [3|4|...|20] [--check] [--format markdown].",
    "benchmark": "Measure layers and models beside baselines: lambdanets benchmark layer|model|memory|scaling.",
    "calibrate": "Measure how fast this machine computes, for the choice of algorithms: lambdanets calibrate.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for what a person must mend, 130 when interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    with signals.handled():
        try:
            return _run(given)
        except BaseException:
            if signals.interrupted():  # libraries make other errors of it, such as a failed import
                return signals.EXIT_CODE
            raise


def _run(given: list[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names need not be text
            stream.reconfigure(errors="backslashreplace")
    try:
        return _dispatch(given)
    except InputError as error:
        return _refuse(str(error))
    except RankZeroFailed:
        return 2
    except KeyboardInterrupt:
        return signals.EXIT_CODE
    except BrokenPipeError:  # the reader of our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _refuse("out of memory; free some, or choose a smaller model or smaller images")
    except OSError as error:
        if not is_for_user(error):
            raise
        return _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        say(*_usage())
        return 0
    if given[0] == "--version":
        say(f"lambdanets {__version__}")
        return 0
    if given[0] not in COMMANDS:
        known = [*COMMANDS, "--help", "--version"]
        raise InputError(f"command must be one of {', '.join(COMMANDS)}, got {given[0]!r}{nearest(given[0], known)}")
    for argument in given:
        if "\0" in argument:  # only a program can pass one
            raise InputError(f"an argument must hold no null byte, got {argument!r}")
    return importlib.import_module(f"lambdanets.cli.{given[0].replace('-', '_')}").main(given[1:])


def _usage() -> list[str]:
    lines = [f"  {name:<14}{what}" for name, what in COMMANDS.items()]
    return ["usage: lambdanets COMMAND ...", "", *lines, "", "lambdanets COMMAND --help lists its options."]


def _refuse(sentence: str) -> int:
    say(f"lambdanets: {sentence}", file=sys.stderr)
    return 2
