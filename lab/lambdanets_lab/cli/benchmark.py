"""`lambdanets benchmark`."""

from lambdanets.cli.options import parse
from lambdanets.errors import InputError, nearest_hint
from lambdanets.terminal import echo


def main(arguments: list[str]) -> int:
    """Run `lambdanets benchmark` and return its exit code."""
    from lambdanets_lab.benchmark.options import OPTIONS

    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {kind:<10}{(options.__doc__ or '').splitlines()[0]}" for kind, options in OPTIONS.items()]
        advice = "lambdanets benchmark KIND --help lists the options."
        echo("usage: lambdanets benchmark KIND ...", "", *lines, "", advice)
        return 0
    kind, *words = arguments
    if kind not in OPTIONS:
        raise InputError(f"kind must be one of {', '.join(OPTIONS)}, got {kind!r}{nearest_hint(kind, OPTIONS)}")
    options = parse(OPTIONS[kind], words, f"benchmark {kind}")
    from lambdanets_lab.benchmark.run import run

    run(kind, options)
    return 0
