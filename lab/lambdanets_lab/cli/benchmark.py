"""`lambdanets benchmark`."""

import functools
import inspect
from typing import Any

from lambdanets.cli.actions import run_action
from lambdanets.cli.options import parse


def main(arguments: list[str]) -> int:
    """Run `lambdanets benchmark` and return its exit code."""
    from lambdanets_lab.benchmark.options import OPTIONS

    return run_action("benchmark", {kind: _action(kind, options) for kind, options in OPTIONS.items()}, arguments)


def _action(kind: str, options_type: type[Any]) -> Any:
    action = functools.partial(_benchmark, kind, options_type)
    action.__doc__ = options_type.__doc__
    return action


def _benchmark(kind: str, options_type: type[Any], arguments: list[str]) -> int:
    description = inspect.cleandoc(options_type.__doc__ or "")
    options = parse(options_type, arguments, prog=f"lambdanets benchmark {kind}", description=description)
    from lambdanets_lab.benchmark.run import run

    run(kind, options)
    return 0
