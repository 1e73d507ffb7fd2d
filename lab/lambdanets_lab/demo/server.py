"""The server of the page, which writes no files."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import uvicorn

from lambdanets.errors import InputError
from lambdanets_lab.demo.app import build_app
from lambdanets_lab.demo.views import Model


@dataclass(frozen=True)
class Server:
    """A running server. url: of the page. wait: waits until the server ends."""

    url: str
    wait: Callable[[], None]


@contextlib.contextmanager
def serve(models: Mapping[str, Model], host: str = "127.0.0.1", port: int = 0) -> Iterator[Server]:
    """Serve the page for models by name within the block. port: 0 for a free one.

    Raises InputError if the address cannot be used.
    """
    with _listen(host, port) as listener:
        config = uvicorn.Config(
            build_app(models, host),
            http="h11",
            ws="none",
            lifespan="off",
            log_level="error",
            proxy_headers=False,  # a client could claim to be another one
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        # not the main thread, so that signals end the command at once
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while thread.is_alive() and not server.started:
                time.sleep(0.01)
            name = f"[{host}]" if ":" in host else host
            yield Server(f"http://{name}:{listener.getsockname()[1]}", thread.join)
        finally:
            server.should_exit = True
            thread.join(timeout=5)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, TypeError, ValueError) as error:  # the last two for invalid host names
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"host and port must be a free address of this machine, got {host}:{port} ({reason})"
        ) from error
