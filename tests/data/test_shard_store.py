import hashlib
import http.client
import os
import pickle
import random
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import aiohttp
import fsspec
import psutil
import pytest
import torch

from data.same_batches import assert_same
from data.test_shards import batches
from lambdanets.cli import main
from lambdanets.data.datasets import open_splits
from lambdanets.data.images import UnreadableImage
from lambdanets.data.shards.checks import verify_shards
from lambdanets.data.shards.images import ShardedImages, open_shards
from lambdanets.data.shards.listing import Shard, UnreadableShard
from lambdanets.data.shards.store import CACHE, CACHE_BYTES, ShardStore, is_url
from lambdanets.errors import InputError

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


class Server(NamedTuple):
    url: str
    https_url: str
    certificate: Path
    log: Path
    pid: int

    def requests(self) -> Counter[str]:
        """Count the requests for each path.

        nginx answers before it writes to its log. Its only worker process writes the lines in order, so all earlier
        lines are there as soon as the line of one more request is.
        """
        sentinel = f"sentinel-{uuid.uuid4()}"
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        connection.request("GET", f"/{sentinel}")
        connection.getresponse().read()
        connection.close()
        deadline = time.monotonic() + 60
        while f'"GET /{sentinel} ' not in (text := self.log.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        paths = re.findall(r'"GET /(\S+)', text)
        return Counter(path for path in paths[: paths.index(sentinel)] if not path.startswith("sentinel-"))


@pytest.fixture
def nginx(shards: Path, tmp_path: Path) -> Iterator[Server]:
    """Serve the shards with nginx over HTTP, and over HTTPS with a self-signed certificate.

    Downloads below slow/ are limited to 200 kB/s.
    """
    home = tmp_path / "nginx"
    home.mkdir()
    ports = _free_ports(2)
    certificate = _certificate(home)
    modules = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temp_paths = " ".join(f"{module}_temp_path {home}/{module};" for module in modules)
    user = "user root;" if os.getuid() == 0 else ""  # by default the worker process could not read the folder
    (home / "nginx.conf").write_text(
        f"daemon off; pid {home}/pid; error_log {home}/error.log; {user} worker_processes 1;\n"
        f"events {{}}\nhttp {{ access_log {home}/access.log; {temp_paths}\n"
        f"server {{ listen 127.0.0.1:{ports[0]}; listen 127.0.0.1:{ports[1]} ssl; root {shards};\n"
        f"location /slow/ {{ alias {shards}/; limit_rate 200k; }}\n"
        f"ssl_certificate {certificate}; ssl_certificate_key {home}/key.pem; }} }}\n"
    )
    assert NGINX is not None
    command = [NGINX, "-p", str(home), "-c", "nginx.conf", "-e", "error.log"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _wait_for(ports[0])
        urls = (f"http://127.0.0.1:{ports[0]}", f"https://127.0.0.1:{ports[1]}")
        yield Server(*urls, certificate, home / "access.log", process.pid)
    finally:
        process.terminate()
        process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def _certificate(home: Path) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    command = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{home}/key.pem", "-out", f"{home}/cert.pem"]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return home / "cert.pem"


class FaultyServer(ThreadingHTTPServer):
    """A server of a folder, in which the first requests for a file fail.

    faults: for each file name, the faults of the first requests: a status code, "damage", "drop" or "stall".
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: dict[str, list[str]] = {}
        self.requests: Counter[str] = Counter()
        self.stopping = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FaultyServer

    def do_GET(self) -> None:
        name = self.path.strip("/")
        self.server.requests[name] += 1
        faults = self.server.faults.get(name, [])
        fault = faults.pop(0) if faults else ""
        if fault.isdecimal():
            return self.send_error(int(fault))
        content = (self.server.folder / name).read_bytes()
        if fault == "damage":
            content = content[:-1] + b"x"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if fault == "drop":
            self.wfile.write(content[:700])
        elif fault == "stall":
            self.server.stopping.wait(10)
        else:
            self.wfile.write(content)
        return None

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def faulty(shards: Path) -> Iterator[FaultyServer]:
    server = FaultyServer(shards)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.stopping.set()
    server.shutdown()
    server.server_close()
    thread.join()


def open_train(url: str, cache: Path, **options: float) -> ShardedImages:
    return open_shards(url, cache=cache, **{"delay": 0.01, **options})[0]["train"]


@needs_nginx
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_over_http_equal_those_of_the_folder(nginx: Server, shards: Path, tmp_path: Path, workers: int) -> None:
    remote = open_train(nginx.url, tmp_path / "cache")
    local = open_splits(str(shards)).train
    assert isinstance(local, ShardedImages)
    assert_same(list(batches(remote, workers=workers)), list(batches(local)))
    assert nginx.requests() == {"shards.json": 1, **{f"train-{number:05}.tar": 1 for number in range(8)}}
    assert remote.name(0).startswith(f"{nginx.url}/train-00000.tar/")
    assert remote.fingerprint == local.fingerprint


@needs_nginx
def test_open_splits_accepts_a_url(
    nginx: Server, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    splits = open_splits(f"{nginx.url}/")
    assert splits.train.labels.tolist() == open_splits(str(shards)).train.labels.tolist()
    assert len(list((tmp_path / "cache").glob("*.tar"))) == 8
    with pytest.raises(InputError, match=r"shards\.json cannot be read: there is no such file"):
        open_splits(f"{nginx.url}/elsewhere")


@needs_nginx
def test_https_uses_the_certificates_that_fsspec_configures(
    nginx: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="certificate"):
        open_train(nginx.https_url, tmp_path / "cache", delay=60)
    context = ssl.create_default_context(cafile=str(nginx.certificate))
    monkeypatch.setitem(fsspec.config.conf, "https", {"ssl": context})
    assert len(list(batches(open_train(nginx.https_url, tmp_path / "cache"), workers=2))) == 4


@needs_nginx
def test_missing_shard_at_a_url_is_not_retried(nginx: Server, shards: Path, tmp_path: Path) -> None:
    (shards / "train-00003.tar").unlink()
    images = open_train(nginx.url, tmp_path / "cache", delay=60)
    with pytest.raises(UnreadableImage, match=rf"{nginx.url}/train-00003\.tar, image 1: there is no such file"):
        images.load(7)
    with pytest.raises(UnreadableImage):
        images.load(6)
    assert nginx.requests()["train-00003.tar"] == 1
    assert images.load(8)


@needs_nginx
def test_verify_downloads_every_shard_at_a_url_again(nginx: Server, shards: Path) -> None:
    assert verify_shards(nginx.url, threads=2).damaged == []
    path = shards / "train-00001.tar"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: None)
        (message,) = verify_shards(nginx.url).damaged
    assert message.startswith(f"{nginx.url}/train-00001.tar: the download has ")


@needs_nginx
@pytest.mark.slow
def test_download_is_retried_after_the_server_is_killed(
    nginx: Server, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = random.Random(0).randbytes(300_000)
    (shards / "large.tar").write_bytes(content)
    shard = Shard("large.tar", images=1, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    delays: list[float] = []
    sleep = time.sleep
    monkeypatch.setattr("lambdanets.data.shards.store.time", SimpleNamespace(sleep=delays.append))
    downloads: list[bytes] = []

    def download() -> None:
        with ShardStore(f"{nginx.url}/slow", cache=tmp_path / "cache").open(shard) as file:
            downloads.append(file.read())

    thread = threading.Thread(target=download)
    thread.start()
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in (tmp_path / "cache").glob(".*.unfinished")):
        assert time.monotonic() < deadline
        sleep(0.01)
    (worker,) = psutil.Process(nginx.pid).children()
    worker.kill()
    thread.join(120)
    assert delays == [2.0]
    assert hashlib.sha256(downloads[0]).hexdigest() == shard.sha256
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".lock", ".lock", ".tar"]


@pytest.mark.parametrize("fault", ["drop", "503", "429", "damage"])
def test_transient_errors_are_retried(faulty: FaultyServer, tmp_path: Path, fault: str) -> None:
    faulty.faults = {"shards.json": ["500"], "train-00000.tar": [fault, fault]}
    assert open_train(faulty.url, tmp_path / "cache").load(0)
    assert faulty.requests == {"shards.json": 2, "train-00000.tar": 3}
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".lock", ".lock", ".tar"]


def test_stalled_server_is_retried(faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timeout = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(sock_read=1)}}
    monkeypatch.setitem(fsspec.config.conf, "http", timeout)
    faulty.faults = {"train-00000.tar": ["stall"]}
    assert open_train(faulty.url, tmp_path / "cache").load(0)
    faulty.faults = {"train-00001.tar": ["stall"] * 2}
    with pytest.raises(UnreadableImage, match=r"the server timed out \(tried 2 times\)"):
        open_train(faulty.url, tmp_path / "cache", attempts=2).load(2)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("drop", r"payload.*\(tried 3 times\)"),
        ("damage", r"the download has \d+ bytes and SHA-256 .* as in shards\.json \(tried 3 times\)"),
        ("502", r"the server responded with status 502 \(tried 3 times\)"),
        ("403", "the server responded with status 403$"),
    ],
)
def test_persistent_errors_are_reported_after_the_last_attempt(
    faulty: FaultyServer, tmp_path: Path, fault: str, reason: str
) -> None:
    faulty.faults = {"train-00000.tar": [fault] * 9}
    images = open_train(faulty.url, tmp_path / "cache", attempts=3)
    with pytest.raises(UnreadableImage, match=rf"(?i){faulty.url}/train-00000\.tar, image 0.*{reason}"):
        images.load(0)
    requests = faulty.requests["train-00000.tar"]
    assert requests == (1 if fault == "403" else 3)
    with pytest.raises(UnreadableImage):
        images.load(1)
    assert faulty.requests["train-00000.tar"] == requests
    assert not list((tmp_path / "cache").glob("*.tar"))


def test_delay_doubles_with_each_retry(faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []
    monkeypatch.setattr("lambdanets.data.shards.store.time.sleep", delays.append)
    faulty.faults = {"train-00000.tar": ["503"] * 9}
    with pytest.raises(UnreadableImage):
        open_train(faulty.url, tmp_path / "cache", attempts=4, delay=2.0).load(0)
    assert [delay for delay in delays if delay >= 2] == [2, 4, 8]


def test_unreachable_server_is_reported_after_3_attempts(tmp_path: Path) -> None:
    (port,) = _free_ports(1)
    with pytest.raises(InputError, match=r"shards\.json cannot be read: .*\(tried 3 times\)"):
        open_train(f"http://127.0.0.1:{port}", tmp_path / "cache", attempts=9)


def test_command_with_an_unreachable_server_stops_after_2_retries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    delays: list[float] = []
    monkeypatch.setattr("lambdanets.data.shards.store.time", SimpleNamespace(sleep=delays.append))
    (port,) = _free_ports(1)
    url = f"http://127.0.0.1:{port}/x"
    assert main(["shard", url, "--verify"]) == 2
    assert delays == [2, 4]  # in seconds
    first, second, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{url}/shards.json: retrying in 2 s (1 of 2): Cannot connect to host 127.0.0.1:{port}")
    assert second.startswith(f"{url}/shards.json: retrying in 4 s (2 of 2): ")
    assert last.endswith("(tried 3 times)")


def test_each_retry_is_reported_in_one_line(
    faulty: FaultyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty.faults = {"shards.json": ["503", "drop", "429"]}
    open_train(faulty.url, tmp_path / "cache")
    output = capsys.readouterr().err.splitlines()
    assert len(output) == 3
    assert output[0] == f"{faulty.url}/shards.json: retrying in 0.01 s (1 of 5): the server responded with status 503"
    assert output[2] == f"{faulty.url}/shards.json: retrying in 0.04 s (3 of 5): the server responded with status 429"


def test_rejects_an_unknown_url_scheme(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nobody://set/shards\.json cannot be read: Protocol not known"):
        open_train("nobody://set", tmp_path / "cache", delay=60)


def test_cache_smaller_than_the_set_stays_below_its_maximum_size(
    faulty: FaultyServer, shards: Path, tmp_path: Path
) -> None:
    max_bytes = max(path.stat().st_size for path in shards.glob("*.tar")) * 3
    cache = tmp_path / "cache"
    images = open_train(faulty.url, cache, cache_bytes=max_bytes)
    for _ in range(2):
        indices = torch.cat([batch.indices for batch in batches(images)]).tolist()
        assert sorted(indices) == list(range(16))
        assert 0 < sum(path.stat().st_size for path in cache.glob("*.tar")) <= max_bytes
    # each shard is downloaded once, although it was removed from the cache, because the process has it open
    assert set(faulty.requests.values()) == {1}
    assert len(list(batches(open_train(faulty.url, cache, cache_bytes=max_bytes), workers=2))) == 4


def test_cache_evicts_the_least_recently_used_shard(faulty: FaultyServer, shards: Path, tmp_path: Path) -> None:
    max_bytes = max(path.stat().st_size for path in shards.glob("*.tar")) * 3
    for number in (0, 1, 2, 0, 3, 0):
        open_train(faulty.url, tmp_path / "cache", cache_bytes=max_bytes).load(2 * number)
        time.sleep(0.01)
    assert faulty.requests["train-00000.tar"] == 1
    open_train(faulty.url, tmp_path / "cache", cache_bytes=max_bytes).load(2)
    assert faulty.requests["train-00001.tar"] == 2


def test_rejects_a_shard_larger_than_the_cache(faulty: FaultyServer, tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match="do not fit into the cache of 1000"):
        open_train(faulty.url, tmp_path / "cache", cache_bytes=1000).load(0)


def test_unfinished_downloads_of_killed_processes_are_removed(
    faulty: FaultyServer, shards: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    images = open_train(faulty.url, cache)
    images.load(0)
    (shard,) = cache.glob("*.tar")
    shard.rename(cache / f".{shard.name}.17.unfinished")
    open_train(faulty.url, cache).load(0)
    assert [path.suffix for path in cache.iterdir() if path.suffix != ".lock"] == [".tar"]


def test_damaged_file_in_the_cache_is_downloaded_again(
    faulty: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    expected = open_train(faulty.url, None).load(0)[0]
    cache = tmp_path / "lambdanets/shards"
    assert cache.stat().st_mode & 0o777 == 0o700
    (shard,) = cache.glob("*.tar")
    content = shard.read_bytes()
    for number, damaged in enumerate((b"damaged", bytes(reversed(content)))):
        shard.write_bytes(damaged)
        assert open_train(faulty.url, None).load(0)[0] == expected
        assert faulty.requests["train-00000.tar"] == 2 + number


def test_rejects_a_cache_folder_that_cannot_be_created(faulty: FaultyServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnreadableImage, match=r"its cache .*file/cache cannot be used"):
        open_train(faulty.url, tmp_path / "file/cache").load(0)


def test_rejects_a_cache_size_that_is_not_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_BYTES, "many")
    with pytest.raises(InputError, match="LAMBDANETS_SHARDS_CACHE_BYTES must be a number of bytes, got 'many'"):
        ShardStore("http://127.0.0.1")


def test_unreadable_shard_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(UnreadableShard("a.tar", "it is gone")))
    assert (error.path, error.reason) == ("a.tar", "it is gone")
    assert str(error) == "shard a.tar cannot be read: it is gone"


def test_paths_are_not_urls() -> None:
    assert is_url("https://host/set")
    assert not any(is_url(path) for path in ("/a/b", "a:b", "://x", "a/b://c", ""))
