"""The page of `lambdanets demo` as a web application: its routes, and which requests it refuses.

All responses are made in memory. A client sends the image with every request, and names nothing on this machine:
models are numbers, and layers and heads are checked. So there are no sessions, and no files to protect or remove.
"""

import asyncio
import contextlib
import io
import ipaddress
import json
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from pydantic import Field
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lambdanets.errors import InputError, is_out_of_memory
from lambdanets.records import check
from lambdanets_lab.demo.examples import example_images
from lambdanets_lab.demo.uploads import MAX_BYTES, MAX_PIXELS, MAX_SIDE, read_upload
from lambdanets_lab.demo.views import ImagePrediction, Model, attention_maps, predict_image

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_REQUESTS = 8  # images that are processed or wait
MAX_REQUESTS_OF_CLIENT = 2
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


def build_app(models: Mapping[str, Model], host: str = "127.0.0.1") -> Starlette:
    """Return the application for models by name. host: address to listen on, which decides about `Host` headers."""
    examples = [example_images(model) for model in models.values()]
    short_names = [Path(name).name for name in models]
    limits = (
        f"PNG, JPEG, TIFF and other images, at most {MAX_BYTES >> 20} MB, {MAX_PIXELS:,} pixels, "
        f"and {MAX_SIDE:,} pixels on a side."
    )
    contents = {
        "models": [
            {
                # a path may have a user's name in it
                "name": name if short_names.count(short_name) > 1 else short_name,
                "examples": [caption for _, caption in images],
            }
            for name, short_name, images in zip(models, short_names, examples, strict=True)
        ],
        "limits": limits,
        "max_bytes": MAX_BYTES,
    }
    static = files("lambdanets_lab.demo") / "static"
    fixed = {
        f"/{name}": Response((static / (name or "index.html")).read_bytes(), media_type=media_type)
        for name, media_type in _FILES.items()
    }
    fixed["/models"] = _json(contents)
    for number, images in enumerate(examples):
        for index, (image, _) in enumerate(images):
            png = io.BytesIO()
            image.save(png, "PNG")
            fixed[f"/examples/{number}/{index}"] = Response(png.getvalue(), media_type="image/png")
    handlers = _ImageRequests(list(models.values()))
    return Starlette(
        routes=[
            *(Route(path, response, methods=["GET"]) for path, response in fixed.items()),
            Route("/predict", handlers.predict, methods=["POST"]),
            Route("/maps", handlers.maps, methods=["POST"]),
        ],
        middleware=[Middleware(_Guard, host=host.lower())],
        exception_handlers={
            HTTPException: lambda _, error: _sentence(error.detail, error.status_code),
            InputError: lambda _, error: _sentence(str(error), 400),
        },
    )


class _ImageRequests:
    """Answers requests with an image as their body. One is processed at a time, so that memory is bounded."""

    def __init__(self, models: list[Model]) -> None:
        self.models = models
        self.clients: Counter[str] = Counter()
        self.limiter = CapacityLimiter(1)
        self.predict_content = lru_cache(_KEPT_PREDICTIONS)(self._predict_content)

    async def predict(self, request: Request) -> Response:
        return await self._answer(request, lambda prediction, _: prediction.summary)

    async def maps(self, request: Request) -> Response:
        return await self._answer(request, _maps)

    async def _answer(
        self, request: Request, view: Callable[[ImagePrediction, QueryParams], dict[str, Any]]
    ) -> Response:
        query = request.query_params

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

        async with self._place(request.client.host if request.client else ""):
            content = await _read_body(request)
            return await to_thread.run_sync(process, content, limiter=self.limiter)

    def _predict_content(self, number: int, content: bytes, name: str, channel: int | None) -> ImagePrediction:
        model = self.models[number]
        return predict_image(model, read_upload(content, name, channel, model.card.stretch), name)

    @contextlib.asynccontextmanager
    async def _place(self, client: str) -> AsyncIterator[None]:
        """Count a request within the block. Raises HTTPException if there are too many."""
        if self.clients[client] >= MAX_REQUESTS_OF_CLIENT:
            raise HTTPException(429, f"{MAX_REQUESTS_OF_CLIENT} of your images are in work; try again in a moment")
        if self.clients.total() >= MAX_REQUESTS:
            raise HTTPException(503, f"{MAX_REQUESTS} images are in work; try again in a moment")
        self.clients[client] += 1
        try:
            yield
        finally:
            self.clients[client] -= 1
            self.clients += Counter()  # removes clients without requests


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
    too_large = HTTPException(413, f"the image must have at most {MAX_BYTES >> 20} MB")
    if int(request.headers.get("content-length", "0")) > MAX_BYTES:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(MAX_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > MAX_BYTES:
                    raise too_large
    except TimeoutError:
        raise HTTPException(408, f"the image must arrive within {MAX_SECONDS} seconds") from None
    except ClientDisconnect:
        raise HTTPException(400, "the image must be sent completely") from None
    return bytes(content)


class _Guard:
    """ASGI middleware that refuses requests to other host names and from other sites, and sets the headers.

    Other sites can let a browser send requests here, also under a name of their own that points to this machine.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        self.host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await (self._refusal(Request(scope)) or self.app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", "").lower(), request.headers.get("origin")
        name = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^\[\]:@/?#]+)(:[0-9]{1,5})?", host)
        if name is None or not self._is_own(name[1].strip("[]")):
            return _sentence(f"Host must be the address of this page, got {host!r}; see --host", 403)
        if origin not in (f"http://{host}", f"https://{host}") and not (origin is None and request.method == "GET"):
            return _sentence(f"Origin must be this page, http://{host}, got {origin!r}", 403)
        return None

    def _is_own(self, name: str) -> bool:
        if name in LOOPBACK or name == self.host:
            return True
        if self.host in LOOPBACK:
            return False
        with contextlib.suppress(ValueError):  # a number cannot be a name that another site points to this machine
            return bool(ipaddress.ip_address(name))
        return name == socket.gethostname().lower()


def _sentence(text: str, status: int) -> Response:
    return _json({"error": f"{text[:1].upper()}{text[1:].rstrip('.')}."}, status)


def _json(content: Mapping[str, Any], status: int = 200) -> Response:
    """Return a JSON response in ASCII, because names from files may not be valid Unicode."""
    return Response(json.dumps(content), status, media_type="application/json")
