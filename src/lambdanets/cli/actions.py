"""Commands with actions, such as `lambdanets detect train`."""

from collections.abc import Callable, Mapping

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
