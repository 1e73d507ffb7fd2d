"""Commands with actions, such as `lambdanets detect train`."""

from collections.abc import Callable, Mapping

from lambdanets.errors import InputError, nearest_hint
from lambdanets.terminal import echo


def run_action(command: str, actions: Mapping[str, Callable[[list[str]], int]], arguments: list[str]) -> int:
    """Run the action that the first argument names, with the others, and return its exit code; list them for --help.

    The first lines of the functions' docstrings are the list.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {name:<10}{(action.__doc__ or '').splitlines()[0]}" for name, action in actions.items()]
        echo(f"usage: lambdanets {command} ACTION ...", "", *lines)
        return 0
    if arguments[0] not in actions:
        raise InputError(
            f"action must be one of {', '.join(actions)}, got {arguments[0]!r}{nearest_hint(arguments[0], actions)}"
        )
    return actions[arguments[0]](arguments[1:])
