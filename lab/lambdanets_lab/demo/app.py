"""The page of `lambdanets demo` as a web application: its routes, its server, and which requests it refuses.

All responses are made in memory. A client sends the image with every request, and names nothing on this machine:
models are numbers, and layers and heads are checked. So there are no sessions, and no files to protect or remove.
"""

import asyncio
import contextlib
import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Annotated, Any

import uvicorn
from anyio import CapacityLimiter, to_thread
from pydantic import Field
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from lambdanets.data.images import read_image
from lambdanets.errors import InputError, is_out_of_memory
from lambdanets.records import check
from lambdanets_lab.demo.examples import example_images
from lambdanets_lab.demo.views import ImagePrediction, Model, attention_maps, predict_image

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")  # the last as in the header Host
MAX_BYTES = 32 * 2**20
MAX_PIXELS = 5_000_000
MAX_REQUESTS = 8  # images that are processed or wait
MAX_CONNECTIONS = 64
MAX_SECONDS = 60  # to receive an image
MAX_NAME = 60  # characters of a file name
_KEPT_PREDICTIONS = 4  # so that a click needs no second prediction
_FILES = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Server:
    """A running server. url: of the page. wait: waits until the server ends."""

    url: str
    wait: Callable[[], None]


@contextlib.contextmanager
def serve(models: Mapping[str, Model], host: str = "127.0.0.1", port: int = 0) -> Iterator[Server]:
    """Serve the page for models by name within the block. port: 0 for a free one.

    Raises InputError if the address cannot be used, and as `build_app`.
    """
    config = uvicorn.Config(
        build_app(models, host),
        ws="none",
        lifespan="off",
        log_level="error",
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except (OSError, ValueError) as error:  # ValueError for an invalid host name
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"host and port must be a free address of this machine, got {host}:{port} ({reason})"
        ) from error
    server = uvicorn.Server(config)
    # not the main thread, so that signals end the command at once
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    with listener:
        thread.start()
        try:
            while thread.is_alive() and not server.started:
                time.sleep(0.01)
            name = f"[{host}]" if ":" in host else host
            yield Server(f"http://{name}:{listener.getsockname()[1]}", thread.join)
        finally:
            server.should_exit = True
            thread.join(timeout=5)


def build_app(models: Mapping[str, Model], host: str = "127.0.0.1") -> Starlette:
    """Return the application for models by name.

    host: address to listen on. Another site may have a name that points to this machine, so requests to other names
    are refused if only this machine can open the page. Raises InputError for models of other tasks.
    """
    for name, model in models.items():
        if not isinstance(model, Model):
            raise InputError(f"models must be classifiers, detectors or segmenters, got {name}: {type(model).__name__}")
    examples = [example_images(model) for model in models.values()]
    short_names = [Path(name).name for name in models]
    contents = {
        "models": [
            {
                # a path may have a user's name in it
                "name": name if short_names.count(short_name) > 1 else short_name,
                "examples": [caption for _, caption in images],
            }
            for name, short_name, images in zip(models, short_names, examples, strict=True)
        ],
        "limits": f"PNG, JPEG, TIFF and other images, at most {MAX_BYTES >> 20} MB and {MAX_PIXELS:,} pixels.",
        "max_bytes": MAX_BYTES,
    }
    static = files("lambdanets_lab.demo") / "static"
    fixed = {
        f"/{name}": Response((static / (name or "index.html")).read_bytes(), headers=_HEADERS, media_type=media_type)
        for name, media_type in _FILES.items()
    }
    fixed["/models"] = _json(contents)
    for number, images in enumerate(examples):
        for index, (image, _) in enumerate(images):
            png = io.BytesIO()
            image.save(png, "PNG")
            fixed[f"/examples/{number}/{index}"] = Response(png.getvalue(), headers=_HEADERS, media_type="image/png")
    handlers = _ImageRequests(list(models.values()))
    return Starlette(
        routes=[
            *(Route(path, response, methods=["GET"]) for path, response in fixed.items()),
            Route("/predict", handlers.predict, methods=["POST"]),
            Route("/maps", handlers.maps, methods=["POST"]),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK if host in LOOPBACK else ["*"])],
        exception_handlers={
            HTTPException: lambda _, error: _sentence(error.detail, error.status_code),
            InputError: lambda _, error: _sentence(str(error), 400),
        },
    )


class _ImageRequests:
    """Answers requests with an image as their body. One is processed at a time, so that memory is bounded."""

    def __init__(self, models: list[Model]) -> None:
        self.models = models
        self.num_requests = 0
        self.limiter = CapacityLimiter(1)
        self.predict_content = lru_cache(_KEPT_PREDICTIONS)(self._predict_content)

    async def predict(self, request: Request) -> Response:
        return await self._answer(request, lambda prediction, _: prediction.summary)

    async def maps(self, request: Request) -> Response:
        return await self._answer(request, _maps)

    async def _answer(
        self, request: Request, view: Callable[[ImagePrediction, QueryParams], dict[str, Any]]
    ) -> Response:
        query, origin = request.query_params, request.headers.get("origin", "")
        if origin.partition("://")[2] != request.headers.get("host"):
            raise HTTPException(403, f"Origin must be this page, got {origin!r}")
        if self.num_requests >= MAX_REQUESTS:
            raise HTTPException(503, f"{MAX_REQUESTS} images are in work; try again in a moment")

        def process(content: bytes) -> Response:
            channel = _integer(query, "channel", 0, 9999) if query.get("channel") else None
            name = PurePath(query.get("name", "")).name[-MAX_NAME:] or "image"
            number = _integer(query, "model", 0, len(self.models) - 1)
            try:
                return _json(view(self.predict_content(number, content, name, channel), query))
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                raise HTTPException(503, "there is not enough memory for this image; reduce its size") from error

        self.num_requests += 1
        try:
            content = await _read_body(request)
            return await to_thread.run_sync(process, content, limiter=self.limiter)
        finally:
            self.num_requests -= 1

    def _predict_content(self, number: int, content: bytes, name: str, channel: int | None) -> ImagePrediction:
        model, file = self.models[number], io.BytesIO(content)
        image = read_image(file, name, channel=channel, stretch=model.card.stretch, max_pixels=MAX_PIXELS)
        return predict_image(model, image, name)


def _maps(prediction: ImagePrediction, query: QueryParams) -> dict[str, Any]:
    height, width = prediction.image.height, prediction.image.width
    at = (_integer(query, "row", 0, height - 1), _integer(query, "column", 0, width - 1))
    return attention_maps(prediction, query.get("layer", ""), _integer(query, "head", 0, 9999), at)


def _integer(query: QueryParams, name: str, minimum: int, maximum: int) -> int:
    text = query.get(name, "")
    value = int(text) if re.fullmatch("[0-9]{1,9}", text) else text
    check(name, value, Annotated[int, Field(ge=minimum, le=maximum)])
    return int(value)


async def _read_body(request: Request) -> bytes:
    """Read the body of a request. Raises HTTPException if it is too large or too slow."""
    content = bytearray()
    try:
        async with asyncio.timeout(MAX_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > MAX_BYTES:
                    raise HTTPException(413, f"the image must have at most {MAX_BYTES >> 20} MB")
    except TimeoutError:
        raise HTTPException(408, f"the image must arrive within {MAX_SECONDS} seconds") from None
    except ClientDisconnect:
        raise HTTPException(400, "the image must be sent completely") from None
    return bytes(content)


def _sentence(text: str, status: int) -> Response:
    return _json({"error": f"{text[:1].upper()}{text[1:].rstrip('.')}."}, status)


def _json(content: Mapping[str, Any], status: int = 200) -> Response:
    """Return a JSON response in ASCII, because names from files may not be valid Unicode."""
    return Response(json.dumps(content), status, _HEADERS, media_type="application/json")
