"""Clients that lie to the page get one sentence: other sites, forged data, files of others, large and slow bodies."""

import http.client
import json
import socket
from contextlib import closing

import pytest
from PIL import Image

import lambdanets as ln
from lab.demo.browser import encode
from lambdanets_lab.demo import app

PRIVATE = Image.new("L", (8, 8), 77)


@pytest.fixture(scope="module")
def client():
    with app.serve({"digits": ln.load("digits")}) as server:
        yield Client(server.url)


@pytest.fixture(autouse=True)
def nothing_in_the_terminal(capfd):
    yield
    assert "".join(capfd.readouterr()) == ""


class Client:
    """A client of the page that may send anything."""

    def __init__(self, url):
        self.address = url.removeprefix("http://")
        self.origin = {"Origin": url}

    def send(self, method, path, body=None, headers=None):
        """Return the status, and the content: JSON as an object, else bytes."""
        with closing(http.client.HTTPConnection(self.address, timeout=30)) as connection:
            connection.request(method, path, body, self.origin if headers is None else headers)
            response = connection.getresponse()
            content = response.read()
            is_json = response.headers["Content-Type"] == "application/json"
            return response.status, json.loads(content) if is_json and content else content

    def refusal(self, *arguments, **options):
        """Send a request that must be refused, and return the sentence."""
        status, content = self.send(*arguments, **options)
        assert status in (400, 403, 404, 405, 408, 413, 503), content
        assert set(content) == {"error"}
        assert "\n" not in content["error"]
        return content["error"]

    def start_upload(self):
        """Start an upload that stalls."""
        host, port = self.address.split(":")
        connection = socket.create_connection((host, int(port)), timeout=10)
        header = f"POST /predict?model=0 HTTP/1.1\r\nHost: {self.address}\r\nOrigin: http://{self.address}\r\n"
        connection.sendall(f"{header}Connection: close\r\nContent-Length: 1000\r\n\r\nhalf".encode())
        return connection


@pytest.mark.parametrize("route", ["predict", "maps"])
def test_no_request_names_a_file_of_the_machine(client, tmp_path, route):
    path = tmp_path / "private.png"
    PRIVATE.save(path)
    for body in (f"file://{path}", json.dumps({"data": [{"path": str(path)}]})):  # the body is the content of an image
        error = client.refusal("POST", f"/{route}?name={path}&path={path}&file={path}&model=0", body.encode())
        assert "it is not an image of a known format" in error


def test_other_sites_can_neither_send_nor_read(client):
    for name in ("evil.example", f"localhost.evil.example:{client.address[-5:]}", "10.0.0.1", "[::2]"):
        for method, path in (("GET", "/"), ("GET", "/models"), ("POST", "/predict?model=0")):
            own = {"Host": name, "Origin": f"http://{name}"}
            assert client.send(method, path, encode(PRIVATE), own)[0] == 400
    for origin in ("null", "http://evil.example", "http://127.0.0.1", ""):
        error = client.refusal("POST", "/predict?model=0", encode(PRIVATE), {"Origin": origin})
        assert error == f"Origin must be this page, got {origin!r}."
    assert client.send("GET", "/models", headers={})[0] == 200


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("model=1", "Model must be less than or equal to 0, got 1."),
        ("model=" + "9" * 5000, "Model must be"),
        ("model=0&channel=[]", "Channel must be"),
        ("model=0&row=8&column=0&head=0&layer=x", "Row must be less than or equal to 7, got 8."),
        ("model=0&row=0&column=0&head=9&layer=layer3.1.conv2", "Head must be less than 4, got 9"),
        ("model=0&row=0&column=0&head=0&layer=../../etc/passwd", "Layer must be one of layer"),
    ],
)
def test_forged_value_gives_one_sentence(client, query, sentence):
    assert client.refusal("POST", f"/maps?{query}", encode(PRIVATE)).startswith(sentence)


def test_file_that_cannot_be_used_gives_one_sentence(client):  # tests/data has the other reasons
    bomb = encode(Image.new("L", (3000, 3000)))
    large = iter([bytes(2**20)] * 34)  # without a length; refused before it is kept
    for content, reason in (
        (b"", "it is empty"),
        (bomb, "3000 x 3000 pixels, more than 5,000,000"),
        (large, "The image must have at most 32 MB."),
    ):
        assert reason in client.refusal("POST", "/predict?model=0&name=/secret/a.png", content)


def test_stalled_uploads_are_ended_and_limited(client, monkeypatch):
    stalled = [client.start_upload() for _ in range(app.MAX_REQUESTS)]
    _, *others = (client.send("POST", "/predict?model=0", encode(PRIVATE)) for _ in range(5))  # the first may overtake
    assert all(status == 503 and "8 images are in work" in content["error"] for status, content in others)
    for connection in stalled:
        connection.close()
    assert any(client.send("POST", "/predict?model=0", encode(PRIVATE))[0] == 200 for _ in range(1000))
    monkeypatch.setattr(app, "MAX_SECONDS", 0.5)
    for upload in [client.start_upload() for _ in stalled]:
        answer = upload.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"within 0.5 seconds" in answer
        upload.close()
    assert any(client.send("POST", "/predict?model=0", encode(PRIVATE))[0] == 200 for _ in range(1000))


def test_responses_allow_neither_scripts_nor_frames_of_other_sites(client):
    with closing(http.client.HTTPConnection(client.address)) as connection:
        for method, path in (("GET", "/"), ("GET", "/page.js"), ("POST", "/predict"), ("GET", "/nothing")):
            connection.request(method, path, headers=client.origin)
            response = connection.getresponse()
            response.read()
            assert response.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
            assert "access-control-allow-origin" not in response.headers
