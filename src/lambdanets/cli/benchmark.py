"""`lambdanets benchmark`."""

from lambdanets.cli.arguments import parse
from lambdanets.errors import InputError, nearest
from lambdanets.terminal import say


def main(arguments: list[str]) -> int:
    """Run `lambdanets benchmark` and return its exit code."""
    from lambdanets.evidence.benchmark.options import KINDS

    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {kind:<9}{(options.__doc__ or '').strip()}" for kind, options in KINDS.items()]
        say("usage: lambdanets benchmark KIND ...", "", *lines, "", "Each has --help of its own.")
        return 0
    kind = arguments[0]
    if kind not in KINDS:
        raise InputError(f"there is no benchmark {kind!r}, only {', '.join(KINDS)}{nearest(kind, KINDS)}")
    description = (
        f"{KINDS[kind].__doc__}\n\nOutputs and gradients are checked against float64 before a time is printed."
    )
    options = parse(KINDS[kind], arguments[1:], prog=f"lambdanets benchmark {kind}", description=description)
    from lambdanets.evidence.benchmark.run import run

    run(kind, options)
    return 0
