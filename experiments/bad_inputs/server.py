"""A local HTTP server with faulty responses, in a separate process."""

import http.server
import os
import signal
import socket


class FaultyHandler(http.server.BaseHTTPRequestHandler):
    """Responds with the status or the invalid body that the first component of the path names."""

    def do_GET(self) -> None:
        name = self.path.split("/")[1]
        body = {"text": b"not a list", "html": b"<html></html>", "list": b"[]", "truncated": b"{"}.get(name, b"")
        self.send_response(int(name) if name.isdigit() else 200)
        self.send_header("Content-Length", str(len(body) + 500 * (name == "truncated")))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - name of the base class

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Server:
    """A process that serves `FaultyHandler` at `url` until it is closed."""

    def __init__(self) -> None:
        server = http.server.HTTPServer(("127.0.0.1", 0), FaultyHandler)
        self.url = f"http://127.0.0.1:{server.server_port}"
        self._process = os.fork()
        if self._process == 0:
            try:
                server.serve_forever()
            finally:
                os._exit(1)
        server.socket.close()

    def close(self) -> None:
        os.kill(self._process, signal.SIGTERM)
        os.waitpid(self._process, 0)


def closed_url() -> str:
    """A URL with a port on which nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"
