"""The server of the page, which writes only to a temporary folder and removes it at the end."""

import contextlib
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lambdanets.errors import InputError
from lambdanets.signals import deferred, interruptible
from lambdanets.web.uploads import MAX_BYTES

if TYPE_CHECKING:
    from lambdanets.web.page import Models

LOOPBACK = ("127.0.0.1", "localhost", "::1")
# Browsers refuse all requests of the page to other hosts.
_POLICY = (
    b"default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    b"style-src 'self' 'unsafe-inline'; frame-ancestors 'self'"
)
_FONTS = {"font": ["system-ui", "sans-serif"], "font_mono": ["monospace"]}  # installed fonts: none is downloaded


@dataclass(frozen=True)
class Server:
    """A running server. url: of the page. wait: waits until the server ends."""

    url: str
    wait: Callable[[], None]


@contextlib.contextmanager
def serve(models: "Models", host: str = "127.0.0.1", port: int = 0) -> Iterator[Server]:
    """Serve the page for models by name within the block. port: 0 for a free one.

    Raises InputError if the address cannot be used.
    """
    with _listen(host, port) as listener, _temporary_folder():
        server = _make_server(models, is_local=host in LOOPBACK)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while thread.is_alive() and not server.started:
                time.sleep(0.01)
            name = f"[{host}]" if ":" in host else host
            yield Server(f"http://{name}:{listener.getsockname()[1]}", lambda: _wait(thread))
        finally:
            with deferred():
                # after 5 s, the socket is closed even if the server is busy; its errors do not concern the user
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
                server.should_exit = True
                thread.join(timeout=5)


def _make_server(models: "Models", is_local: bool) -> Any:
    # imported here because gradio makes a folder when it is imported
    import gradio as gr
    import uvicorn
    from fastapi import FastAPI
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from lambdanets.web import texts
    from lambdanets.web.page import build_page

    app = FastAPI(openapi_url=None)
    if is_local:  # other sites cannot reach the page by a name that points to this machine
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]"])
    app.add_middleware(_ContentPolicy)
    gr.mount_gradio_app(
        app, build_page(models), path="/", max_file_size=MAX_BYTES, show_error=False, ssr_mode=False, pwa=False,
        enable_monitoring=False, mcp_server=False, run_history=False, footer_links=[], css=texts.CSS,
        theme=gr.themes.Default(**_FONTS),
    )  # fmt: skip
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))


def _wait(thread: threading.Thread) -> None:
    while thread.is_alive():
        thread.join(timeout=1)  # signals are handled between two calls


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError, TypeError, ValueError) as error:  # the last two for invalid host names
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"host and port must be a free address of this machine, got {host}:{port} ({reason})"
        ) from error


@contextlib.contextmanager
def _temporary_folder() -> Iterator[None]:
    """Make a folder for the files of gradio within the block, and remove it, also after a signal."""
    variables = {"GRADIO_TEMP_DIR": "", "GRADIO_ANALYTICS_ENABLED": "False"}
    previous = {name: os.environ.get(name) for name in variables}
    with interruptible():  # outside of this block a signal would end the process and leave the folder
        folder = Path(tempfile.mkdtemp(prefix="lambdanets-demo-"))
        try:
            os.environ.update(variables | {"GRADIO_TEMP_DIR": str(folder)})
            yield
        finally:
            with deferred():
                for name, value in previous.items():
                    os.environ.pop(name, None) if value is None else os.environ.update({name: value})
                shutil.rmtree(folder, ignore_errors=True)


class _ContentPolicy:
    """ASGI middleware that adds the content security policy to every response."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"content-security-policy", _POLICY)]
            await send(message)

        await self.app(scope, receive, send_with_policy if scope["type"] == "http" else send)
