"""`lambdanets tables`."""

from lambdanets.arguments import parse


def main(arguments: list[str]) -> int:
    """Run `lambdanets tables` and return its exit code."""
    from lambdanets.evidence.tables import command

    description = "Show the paper's tables with what the models of this package come to beside each figure."
    return command.run(parse(command.Tables, arguments, prog="lambdanets tables", description=description))
