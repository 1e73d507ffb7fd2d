"""The server of the page, which writes no files."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lambdanets.errors import InputError
from lambdanets_lab.demo.app import MAX_SECONDS, build_app
from lambdanets_lab.demo.views import Model

MAX_CONNECTIONS = 128  # macOS lets a process open 256 files
MAX_CONNECTIONS_OF_CLIENT = 32
MAX_SECONDS_TO_ASK = 10  # to receive the headers of the first request


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
            http=_Connection,
            backlog=16,  # that asyncio accepts before `_Connection` can refuse any
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
            listener.listen()  # asyncio also reduced the number of those that wait
            name = f"[{host}]" if ":" in host else host
            yield Server(f"http://{name}:{listener.getsockname()[1]}", thread.join)
        finally:
            server.should_exit = True
            thread.join(timeout=5)


class _Connection(H11Protocol):
    """A connection that is closed if there are too many, or if it has had no request for too long.

    uvicorn waits forever for the rest of the headers, and for clients to read a response.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        others = [other for other in self.connections if isinstance(other, _Connection)]
        hosts = [other.client[0] for other in others if other.client]
        of_client = hosts.count(self.client[0]) if self.client else 0
        if len(self.connections) > MAX_CONNECTIONS or of_client > MAX_CONNECTIONS_OF_CLIENT:
            transport.abort()
        self._limit = self.loop.call_later(MAX_SECONDS_TO_ASK, self._expire)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit.cancel()
        self._limit = self.loop.call_later(MAX_SECONDS, self._expire)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.cancel()
        super().connection_lost(exc)

    def _expire(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, TypeError, ValueError) as error:  # the last two for invalid host names
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"host and port must be a free address of this machine, got {host}:{port} ({reason})"
        ) from error
