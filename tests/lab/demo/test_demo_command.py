"""`lambdanets demo` as a process: what it prints, and that it writes no files."""

import http.client
import os
import signal
import socket
import subprocess
import sys

import pytest

import lambdanets as ln
from lab.demo.uploads import encode
from lambdanets.cli import main
from lambdanets_lab.demo.examples import example_images


def test_occupied_port_is_a_users_error(capsys):
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        assert main(["demo", "digits", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lambdanets: host and port must be a free address of this machine, got 127.0.0.1:{port}")


@pytest.mark.parametrize("arguments", [["nothing"], ["digits", "--port", "70000"], ["digits", "--device", "tpu"]])
def test_invalid_argument_is_a_users_error(arguments, capsys):
    assert main(["demo", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_uploads_are_never_in_files_and_signals_end_the_command(tmp_path):
    image, _ = example_images(ln.load("digits"))[0]
    processes = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        folder = tmp_path / number.name
        for name in ("temporary", "working"):
            (folder / name).mkdir(parents=True)
        processes[number] = subprocess.Popen(
            [sys.executable, "-m", "lambdanets", "demo", "digits", "--port", "0"],
            env=os.environ | {"TMPDIR": str(folder / "temporary")}, cwd=folder / "working", text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    for number, process in processes.items():
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:"), process.stderr.read()
        address = line.split()[0].removeprefix("http://")
        connection = http.client.HTTPConnection(address)
        connection.request("POST", "/predict?model=0", encode(image), {"Origin": f"http://{address}"})
        assert connection.getresponse().status == 200
        names = [path.name for path in (tmp_path / number.name).glob("*/*")]
        assert [name for name in names if not name.startswith("torchinductor_")] == []  # PyTorch's, made on import
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (130, "")
