"""The command line: `lambdanets` or `python -m lambdanets`."""

import os
import sys

from lambdanets.allocator import keep_freed_memory
from lambdanets.cli import main


def console() -> None:
    """Run the command line and exit."""
    keep_freed_memory()
    if "OMP_WAIT_POLICY" not in os.environ:
        # GNU OpenMP, which PyTorch then loads: threads sleep sooner while they wait for one that another process
        # keeps from its core. By default it is 300,000; training beside another process is then 4 times as slow.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    sys.exit(main())


if __name__ == "__main__":  # false in spawned worker processes, which import this module under another name
    console()
