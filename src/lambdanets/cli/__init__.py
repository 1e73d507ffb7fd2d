"""The command line: one module per command, which parses options, calls the library and prints.

Options are made from records. A user error is one line on stderr, and exit code 2. A command's module is
imported when the command is run, and PyTorch only when it is needed, so that --help and option errors are fast.
"""

import importlib.util
import io
import os
import sys
from collections.abc import Sequence

from lambdanets import __version__, signals
from lambdanets.errors import InputError, check_choice, describe_failure, explain_missing_extras
from lambdanets.terminal import echo

# Command -> line in the help. `main` in its module, here or in `lambdanets_lab.cli`, may return an exit code.
COMMANDS = {
    "train": "Train a recipe of any task: lambdanets train [RECIPE] [--OPTION VALUE ...], or train --resume DIR.",
    "evaluate": "Evaluate a model on a labeled set: lambdanets evaluate MODEL [--data DATA].",
    "predict": "Classify, detect or segment in image files: lambdanets predict MODEL IMAGES...",
    "explain": "Show what lambda layers look at in an image: lambdanets explain MODEL IMAGE --out FOLDER.",
    "demo": "Try models on images in the browser, on this machine: lambdanets demo [MODELS...].",
    "adopt": "Replace the lambda layers of a timm model and save it: lambdanets adopt MODEL --out FOLDER.",
    "export": "Export a trained model to ONNX, OpenVINO or torch.export: lambdanets export MODEL --out FILE.",
    "shard": "Write a dataset as WebDataset shards, verify or index shards: lambdanets shard DATA OUT.",
    "pseudo-label": "Pseudo-label images with a teacher: lambdanets pseudo-label TEACHER SHARDS OUT.",
    "report": "Compare detection runs as in the paper's Table 14: lambdanets report RUNS...",
    "compare": "Compare model variants over several seeds: lambdanets compare STUDIES [RECIPE].",
    "tables": "Compare the paper's tables with this package: lambdanets tables [3 4 ...].",
    "benchmark": "Benchmark against baselines: lambdanets benchmark layer | model | scaling | tables.",
    "kernels": "Show and check the compiled kernels on this machine: lambdanets kernels [--device cuda].",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for a user's error, 130 when interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # Shells expand ~ in "--run ~/x", but not in "--run=~/x", which would make a folder named "~".
    options = (word.partition("=") for word in arguments)
    arguments = [name + equals + os.path.expanduser(value) for name, equals, value in options]  # noqa: PTH111
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by >&-; the next file that is opened would get its output
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - until the process ends
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):  # file names may not be valid UTF-8
            stream.reconfigure(errors="backslashreplace")
    try:
        with signals.handle_signals(), explain_missing_extras():
            return _run(arguments)
    except KeyboardInterrupt as error:
        echo(*(f"stopped; {note}" for note in getattr(error, "__notes__", ())), file=sys.stderr)
        return signals.EXIT_CODE
    except BrokenPipeError:  # the reader of standard output, such as head, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (InputError, OSError, MemoryError, RuntimeError) as error:
        if (description := describe_failure(error)) is None:
            raise
        echo("; ".join([f"lambdanets: {description}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        return 2


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        commands = (f"  {name:<14}{text}" for name, text in COMMANDS.items())
        advice = "lambdanets COMMAND --help lists its options; lambdanets --version prints the version."
        echo("usage: lambdanets COMMAND ...", "", *commands, "", advice)
        return 0
    if arguments[0] == "--version":
        echo(f"lambdanets {__version__}")
        return 0
    command = arguments[0]
    check_choice("command", command, COMMANDS, ("--help", "--version"))
    module = command.replace("-", "_")
    package = "lambdanets" if importlib.util.find_spec(f"lambdanets.cli.{module}") else "lambdanets_lab"
    return importlib.import_module(f"{package}.cli.{module}").main(arguments[1:]) or 0
