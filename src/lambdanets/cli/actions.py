"""Commands with actions, such as `lambdanets detect train`."""

import re
import sys
from collections.abc import Callable, Mapping

from lambdanets.cli import train
from lambdanets.errors import InputError, nearest_hint
from lambdanets.terminal import echo


def run_action(command: str, actions: Mapping[str, Callable[[list[str]], int]], arguments: list[str]) -> int:
    """Run the action named by the first argument on the other arguments, and return its exit code.

    --help lists the actions with the first line of their docstrings.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<10}{(action.__doc__ or '').splitlines()[0]}" for name, action in actions.items()]
        advice = f"lambdanets {command} ACTION --help lists the options."
        echo(f"usage: lambdanets {command} ACTION ...", "", *lines, "", advice)
        return 0
    if arguments[0] not in actions:
        raise InputError(
            f"action must be one of {', '.join(actions)}, got {arguments[0]!r}{nearest_hint(arguments[0], actions)}"
        )
    return actions[arguments[0]](arguments[1:])


def run_train(command: str, renamed: Mapping[str, str], arguments: list[str]) -> int:
    """Run `lambdanets COMMAND train`, the earlier name of `lambdanets train`. renamed: new names of recipes."""
    if not arguments or (arguments[0].startswith("-") and not any(word.startswith("--resume") for word in arguments)):
        arguments = ["digits", *arguments]
    if not arguments[0].startswith("-"):
        new = re.sub(rf"^({'|'.join(renamed)})(?=_|$)", lambda match: renamed[match[0]], arguments[0])
        arguments = [new, *arguments[1:]]
    echo(f"lambdanets {command} train is now: lambdanets {' '.join(['train', *arguments[:1]])} ...", file=sys.stderr)
    return train.main(arguments)
