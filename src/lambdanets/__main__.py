"""The command line: `lambdanets` or `python -m lambdanets`."""

import sys

from lambdanets.allocator import keep_freed_memory
from lambdanets.cli import main


def console() -> None:
    """Run the command line and exit."""
    keep_freed_memory()
    sys.exit(main())


if __name__ == "__main__":  # false in spawned worker processes, which import this module under another name
    console()
