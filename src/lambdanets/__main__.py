"""The command `lambdanets`, also `python -m lambdanets`."""

import os
import signal
import sys


def console() -> None:
    """Run the command line and exit. A signal while Python imports it or shuts down ends the process quietly."""
    end_quietly()
    from lambdanets.cli import main  # tenths of a second, in which a signal may come

    sys.exit(main())


def end_quietly() -> None:
    """From here on a signal ends the process at once, but for those that were ignored when it began."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: os._exit(130))


if __name__ == "__main__":  # spawned worker processes import it under another name
    console()
