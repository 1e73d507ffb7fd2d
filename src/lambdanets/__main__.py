"""The command line: `lambdanets` or `python -m lambdanets`."""

import os
import signal
import sys


def console() -> None:
    """Run the command line and exit. Signals during import or shutdown end the process without a traceback."""
    exit_quietly_on_signals()
    # imported after the handlers are set, because this takes tenths of a second
    from lambdanets.allocator import keep_freed_memory
    from lambdanets.cli import main

    keep_freed_memory()
    sys.exit(main())


def exit_quietly_on_signals() -> None:
    """Make signals end the process immediately and without a message. Signals that are ignored stay ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signum = getattr(signal, name, None)  # Windows has no SIGHUP
        if signum is not None and signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, lambda *_: os._exit(130))


if __name__ == "__main__":  # false in spawned worker processes, which import this module under another name
    console()
