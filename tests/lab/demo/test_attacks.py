"""Clients that lie to the page get one sentence: other sites, forged data, files of others, large and slow bodies."""

import contextlib
import http.client
import itertools
import json
import socket
import sys
import time
from contextlib import closing

import pytest
from PIL import Image

import lambdanets as ln
from lab.demo.uploads import encode, png_of_size, unreadable_files
from lambdanets_lab.demo import app, server
from lambdanets_lab.demo.examples import example_images
from lambdanets_lab.demo.server import serve

PRIVATE = Image.new("L", (8, 8), 77)


@pytest.fixture(scope="module")
def digits():
    return ln.load("digits")


@pytest.fixture(scope="module")
def client(digits):
    with serve({"digits": digits}) as server:
        yield Client(server.url)


@pytest.fixture
def private(tmp_path):
    path = tmp_path / "private.png"
    PRIVATE.save(path)
    return path


@pytest.fixture(autouse=True)
def nothing_in_the_terminal(capfd):
    yield
    assert "".join(capfd.readouterr()) == ""


class Client:
    """A client of the page that may send anything."""

    def __init__(self, url):
        self.address = url.removeprefix("http://")
        self.origin = {"Origin": url}

    def send(self, method, path, body=None, headers=None, source=("127.0.0.1", 0)):
        """Return the status, and the content: JSON as an object, else bytes."""
        with closing(http.client.HTTPConnection(self.address, timeout=30, source_address=source)) as connection:
            connection.request(method, path, body, self.origin if headers is None else headers)
            response = connection.getresponse()
            content = response.read()
            is_json = response.headers["Content-Type"] == "application/json"
            return response.status, json.loads(content) if is_json and content else content

    def refusal(self, *arguments, **options):
        """Send a request that must be refused, and return the sentence."""
        status, content = self.send(*arguments, **options)
        assert 400 <= status < 500, content
        assert set(content) == {"error"}
        assert "\n" not in content["error"]
        return content["error"]

    def start(self, text):
        """Open a connection that sends something and stalls."""
        host, port = self.address.split(":")
        connection = socket.create_connection((host, int(port)), timeout=10)
        connection.sendall(text.encode())
        return connection

    def start_upload(self):
        """Start an upload that stalls."""
        header = f"POST /predict?model=0 HTTP/1.1\r\nHost: {self.address}\r\nOrigin: http://{self.address}\r\n"
        return self.start(f"{header}Connection: close\r\nContent-Length: 1000\r\n\r\nhalf")


def every_route(digits):
    return [(method, route.path) for route in app.build_app({"digits": digits}).routes for method in route.methods]


def test_no_route_answers_forged_data_with_a_file_of_the_machine(client, digits, private):
    path = str(private)
    forged = [
        json.dumps({"data": ["digits", {"path": path, "meta": {"_type": "gradio.FileData"}}], "fn_index": 0}),
        json.dumps({"image": path, "session_hash": "other", "path": path}),
        f'--x\r\nContent-Disposition: form-data; name="file"; filename="{path}"\r\n\r\n{path}\r\n--x--\r\n',
        f"file={path}&path={path}",
        path,
        f"file://{path}",
    ]
    kinds = ("application/json", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "image/png")
    names = ("name", "path", "file", "image", "model", "session")
    query = "&".join(f"{name}={path}" for name in names)
    for (method, route), (body, kind) in itertools.product(every_route(digits), itertools.product(forged, kinds)):
        status, content = client.send(method, f"{route}?{query}", body.encode(), client.origin | {"Content-Type": kind})
        assert private.read_bytes() not in (content if isinstance(content, bytes) else b"")
        if method == "POST":
            assert 400 <= status < 500
            assert set(content) == {"error"}
    for body in forged:  # with a valid model, the body is still only the content of an image
        assert "it is not an image of a known format" in client.refusal("POST", "/predict?model=0", body.encode())


def test_paths_that_are_no_routes_are_not_found(client, private):
    paths = [
        *("/../../../etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/page.js/../../app.py", "/static/page.js"),
        *("/examples/0/../../page.js", "/examples/0/99", "/examples/-1/0", "/examples/0/%00", f"/file={private}"),
        *("/app.py", "/docs", "/openapi.json", "/gradio_api/queue/join", f"/{private}", "/%2e%2e/app.py"),
    ]
    assert {client.refusal("GET", path) for path in paths} == {"Not Found."}
    assert client.refusal("DELETE", "/predict") == client.refusal("PUT", "/") == "Method Not Allowed."


def test_other_sites_can_neither_send_nor_read(client):
    host = client.address
    for name in (
        "evil.example",
        f"localhost.evil.example:{host[-5:]}",
        "",
        "127.0.0.1@evil.example",
        "10.0.0.1",
        "[::2]",
    ):
        for method, path in (("GET", "/"), ("GET", "/models"), ("POST", "/predict?model=0")):
            own = {"Host": name, "Origin": f"http://{name}"}
            assert client.refusal(method, path, headers=own).startswith("Host must be the address of this page, got")
    for origin in (
        "null",
        "http://evil.example",
        f"http://localhost:{host[-5:]}",
        "http://127.0.0.1",
        f"ftp://{host}",
        "",
    ):
        for method, path in (("POST", "/predict?model=0"), ("POST", "/maps?model=0"), ("GET", "/models")):
            assert client.refusal(method, path, headers={"Origin": origin}).startswith("Origin must be this page, http")
    assert client.refusal("POST", "/predict?model=0", encode(PRIVATE), headers={}).startswith(
        "Origin must be this page"
    )
    assert client.send("GET", "/models", headers={})[0] == 200


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("model=1", "Model must be less than or equal to 0, got 1."),
        ("model=" + "9" * 5000, "Model must be"),
        ("model=0x0", "Model must be"),
        ("", "Model must be"),
        ("model=0&channel=[]", "Channel must be"),
        ("model=0&row=8&column=0&head=0&layer=x", "Row must be less than or equal to 7, got 8."),
        ("model=0&row=0&column=1e3&head=0&layer=x", "Column must be"),
        ("model=0&row=0&column=0&head=9&layer=layer3.1.conv2", "Head must be less than 4, got 9"),
        ("model=0&row=0&column=0&head=0&layer=../../etc/passwd", "Layer must be one of layer"),
    ],
)
def test_forged_value_gives_one_sentence(client, query, sentence):
    assert client.refusal("POST", f"/maps?{query}", encode(PRIVATE)).startswith(sentence)


def test_file_that_cannot_be_read_gives_one_sentence(client):
    for name, content, reason in unreadable_files():
        assert reason in client.refusal("POST", f"/predict?model=0&name=/secret/{name}", content)
    assert "more than 5,000,000" in client.refusal("POST", "/predict?model=0", png_of_size(1, 6_000_000))


def test_large_bodies_are_refused_before_they_are_kept(client):
    sentence = "The image must have at most 32 MB."
    announced = client.origin | {"Content-Length": str(200 * 2**20)}
    assert client.refusal("POST", "/predict?model=0", b"0", headers=announced) == sentence
    assert client.refusal("POST", "/predict?model=0", iter([bytes(2**20)] * 34)) == sentence  # without a length
    assert client.send("GET", "/models")[0] == 200


def test_stalled_uploads_of_one_client_do_not_stop_another(client, digits, monkeypatch):
    monkeypatch.setattr(app, "MAX_SECONDS", 1)
    stalled = [client.start_upload() for _ in range(app.MAX_REQUESTS_OF_CLIENT)]
    time.sleep(0.2)
    assert "2 of your images are in work" in client.refusal("POST", "/predict?model=0", encode(PRIVATE))
    if sys.platform == "linux":  # where a second address of this machine needs no setup
        image, caption = example_images(digits)[0]
        status, found = client.send("POST", "/predict?model=0", encode(image), source=("127.0.0.2", 0))
        assert (status, found["headline"][:7]) == (200, f"Class {caption[-1]}")
    answers = [connection.makefile("rb").read() for connection in stalled]
    assert all(answer.startswith(b"HTTP/1.1 408") and b"within 1 seconds" in answer for answer in answers)
    for connection in (*stalled, client.start_upload()):
        connection.close()
    time.sleep(0.2)  # the last one is closed before its body is complete
    assert client.send("POST", "/predict?model=0", encode(PRIVATE))[0] == 200


def test_connections_without_a_request_are_limited_and_closed(client, monkeypatch):
    monkeypatch.setattr(server, "MAX_SECONDS_TO_ASK", 0.5)
    monkeypatch.setattr(server, "MAX_SECONDS", 0.5)
    request = f"GET / HTTP/1.1\r\nHost: {client.address}\r\n"
    stalled = [client.start(text) for text in (request, "", f"{request}\r\n{request}") for _ in range(10)]
    refused = [client.start("") for _ in range(100)]
    if sys.platform == "linux":
        assert client.send("GET", "/models", source=("127.0.0.2", 0))[0] == 200
    for connection in (*stalled, *refused):
        with closing(connection), contextlib.suppress(ConnectionResetError):
            while connection.recv(2**20):
                pass
    assert client.send("GET", "/models")[0] == 200


def test_responses_allow_neither_scripts_nor_frames_of_other_sites(client):
    with closing(http.client.HTTPConnection(client.address)) as connection:
        for method, path in (("GET", "/"), ("GET", "/page.js"), ("POST", "/predict"), ("GET", "/nothing")):
            connection.request(method, path, headers=client.origin)
            response = connection.getresponse()
            response.read()
            policy = response.headers["Content-Security-Policy"]
            assert "unsafe" not in policy
            assert policy.startswith("default-src 'none'; script-src 'self';")
            assert "access-control-allow-origin" not in response.headers
