"""`lambdanets benchmark`."""

from lambdanets.cli.options import parse
from lambdanets.errors import check_choice
from lambdanets.terminal import echo


def main(arguments: list[str]) -> None:
    """Run `lambdanets benchmark`."""
    from lambdanets_lab.benchmark.options import OPTIONS

    if not arguments or arguments[0] in ("-h", "--help"):
        lines = [f"  {kind:<10}{(options.__doc__ or '').splitlines()[0]}" for kind, options in OPTIONS.items()]
        advice = "lambdanets benchmark KIND --help lists the options."
        echo("usage: lambdanets benchmark KIND ...", "", *lines, "", advice)
        return
    kind, *words = arguments
    check_choice("kind", kind, OPTIONS)
    options = parse(OPTIONS[kind], words, f"benchmark {kind}")
    from lambdanets_lab.benchmark.run import run

    run(kind, options)
