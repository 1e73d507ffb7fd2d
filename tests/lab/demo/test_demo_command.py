"""`lambdanets demo` in a forked process: what it prints, and that it writes no files."""

import http.client
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time

import pytest

import lambdanets as ln
from lab.demo.browser import encode
from lambdanets.cli import main
from lambdanets_lab.demo.app import build_app
from lambdanets_lab.demo.examples import example_images


def test_occupied_port_and_model_of_another_task_are_errors_of_users(capsys):
    with pytest.raises(ValueError, match="models must be classifiers, detectors or segmenters, got x: object"):
        build_app({"x": object()})
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        assert main(["demo", "digits", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lambdanets: host and port must be a free address of this machine, got 127.0.0.1:{port}")


@pytest.mark.forks
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_uploads_are_never_in_files_and_signals_end_the_command(number, tmp_path, monkeypatch):
    image, _ = example_images(ln.load("digits"))[0]
    output = tmp_path / "output"
    for name in ("temporary", "working"):
        (tmp_path / name).mkdir()

    def demo():
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        os.chdir(tmp_path / "working")
        with output.open("w", buffering=1) as file:
            sys.stdout = sys.stderr = file
            os._exit(main(["demo", "digits", "--port", "0"]))

    process = multiprocessing.get_context("fork").Process(target=demo, daemon=True)
    process.start()
    while not (output.is_file() and "\n" in output.read_text()):
        assert process.is_alive()
        time.sleep(0.02)
    line = output.read_text()
    assert line.startswith("http://127.0.0.1:")
    address = line.split()[0].removeprefix("http://")
    connection = http.client.HTTPConnection(address)
    connection.request("POST", "/predict?model=0", encode(image), {"Origin": f"http://{address}"})
    assert connection.getresponse().status == 200
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == 130
    assert output.read_text() == line
    assert list(tmp_path.glob("*/*")) == []
