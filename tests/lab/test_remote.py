"""Shards at a URL are downloaded into a cache, with retries."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from data.test_batches import assert_same
from data.test_shards import batches
from lambdanets.cli import main
from lambdanets.data.datasets import open_splits
from lambdanets.data.images import UnreadableImage
from lambdanets.data.shards import open_shards
from lambdanets_lab import remote


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder; retries do not wait."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in (remote.CACHE, remote.CACHE_BYTES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(remote, "DELAY", 0.01)
    monkeypatch.setattr(remote, "verified", set())
    return tmp_path / "lambdanets/shards"


@pytest.fixture
def faulty(shards: Path) -> Iterator[SimpleNamespace]:
    """A server of the shards: its `url`, the `requests` by file, and the `faults` of the first requests by file.

    A fault is a status code, "damage" or "drop".
    """
    state = SimpleNamespace(faults={}, requests=Counter())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]  # the path is a URL if this server is a proxy
            state.requests[name] += 1
            faults = state.faults.get(name, [])
            fault = faults.pop(0) if faults else ""
            if fault.isdecimal():
                return self.send_error(int(fault))
            content = (shards / name).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if fault == "damage":
                content = content[:-1] + b"x"
            self.wfile.write(content[:700] if fault == "drop" else content)
            return None

        def log_message(self, *arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield state
        server.shutdown()


def open_train(url):
    return open_shards(url)["train"]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_over_http_equal_those_of_the_folder(faulty, shards, cache, workers):
    images, local = open_train(f"{faulty.url}/"), open_splits(str(shards)).train
    assert_same(list(batches(images, workers=workers)), list(batches(local)))
    assert faulty.requests == {"shards.json": 1, **{f"train-{number:05}.tar": 1 for number in range(8)}}
    assert images.name(0).startswith(f"{faulty.url}/train-00000.tar/")
    assert images.fingerprint == local.fingerprint
    assert len(list(cache.glob("*.tar"))) == 8
    assert cache.stat().st_mode & 0o777 == 0o700


def test_a_proxy_of_the_environment_is_used(faulty, monkeypatch):
    monkeypatch.setenv("http_proxy", faulty.url)
    assert open_train("http://shards.invalid").load(0)
    assert faulty.requests["shards.json"] == 1


@pytest.mark.parametrize("fault", ["drop", "429", "damage"])
def test_transient_errors_are_retried(faulty, cache, fault):
    faulty.faults = {"shards.json": ["500"], "train-00000.tar": [fault, fault]}
    assert open_train(faulty.url).load(0)
    assert faulty.requests == {"shards.json": 2, "train-00000.tar": 3}
    assert sorted(path.suffix for path in cache.iterdir()) == [".lock", ".lock", ".tar"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("drop", r"payload.*\(tried 5 times\)"),
        ("damage", r"the download has \d+ bytes and SHA-256 .* as in shards\.json \(tried 5 times\)"),
        ("502", r"502.*\(tried 5 times\)"),
        ("403", "403"),
        ("404", "there is no"),
    ],
)
def test_persistent_errors_are_reported_after_the_last_attempt(faulty, cache, fault, reason):
    faulty.faults = {"train-00000.tar": [fault] * 9}
    images = open_train(faulty.url)
    for number in (0, 1):
        with pytest.raises(UnreadableImage, match=rf"(?i){faulty.url}/train-00000\.tar, image {number}.*{reason}"):
            images.load(number)
    assert faulty.requests["train-00000.tar"] == (1 if fault in ("403", "404") else 5)
    assert not list(cache.glob("*.tar"))


def test_command_with_an_unreachable_server_names_it_in_one_line(capsys):
    port = 1  # no server has it
    url = f"http://127.0.0.1:{port}/x"
    assert main(["shard", url, "--verify"]) == 2
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{url}/shards.json: retrying in 0.01 s (1 of 4): Cannot connect to host 127.0.0.1:{port} ")
    assert last.endswith("(tried 5 times)")


def test_cache_evicts_the_least_recently_used_shard(faulty, shards, monkeypatch):
    max_bytes = max(path.stat().st_size for path in shards.glob("*.tar")) * 3
    monkeypatch.setenv(remote.CACHE_BYTES, str(max_bytes))
    for number in (0, 1, 2, 0, 3, 0):
        open_train(faulty.url).load(2 * number)
        time.sleep(0.01)
    assert faulty.requests["train-00000.tar"] == 1
    open_train(faulty.url).load(2)
    assert faulty.requests["train-00001.tar"] == 2
    monkeypatch.setenv(remote.CACHE_BYTES, "1000")
    with pytest.raises(UnreadableImage, match="do not fit into the cache of 1000"):
        open_train(faulty.url).load(8)


def test_damaged_file_in_the_cache_is_downloaded_again(faulty, cache):
    expected = open_train(faulty.url).load(0)[0]
    (shard,) = cache.glob("*.tar")
    content = shard.read_bytes()
    for number, damaged in enumerate((b"damaged", bytes(reversed(content)))):
        shard.write_bytes(damaged)
        remote.verified.clear()  # as in another process
        assert open_train(faulty.url).load(0)[0] == expected
        assert faulty.requests["train-00000.tar"] == 2 + number
