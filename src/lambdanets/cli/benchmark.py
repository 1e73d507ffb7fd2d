"""`lambdanets benchmark`."""

from lambdanets.cli.arguments import parse
from lambdanets.errors import InputError, nearest_hint
from lambdanets.terminal import echo


def main(arguments: list[str]) -> int:
    """Run `lambdanets benchmark` and return its exit code."""
    from lambdanets.evidence.benchmark.options import KINDS

    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {kind:<9}{(options.__doc__ or '').strip()}" for kind, options in KINDS.items()]
        echo(
            "usage: lambdanets benchmark KIND ...",
            "",
            *lines,
            "",
            "lambdanets benchmark KIND --help lists its options.",
        )
        return 0
    kind = arguments[0]
    if kind not in KINDS:
        raise InputError(f"benchmark must be one of {', '.join(KINDS)}, got {kind!r}{nearest_hint(kind, KINDS)}")
    description = f"{KINDS[kind].__doc__}\n\nOutputs and gradients are verified against float64 before timing."
    options = parse(KINDS[kind], arguments[1:], prog=f"lambdanets benchmark {kind}", description=description)
    from lambdanets.evidence.benchmark.run import run

    run(kind, options)
    return 0
