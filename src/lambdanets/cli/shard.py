"""`lambdanets shard`."""

from lambdanets.arguments import parse


def main(arguments: list[str]) -> int:
    """Run `lambdanets shard` and return its exit code."""
    from lambdanets.data.shards import command

    description = "Write a set of images into WebDataset shards, or check or list those in a folder or at a URL."
    return command.run(parse(command.Shard, arguments, prog="lambdanets shard", description=description))
