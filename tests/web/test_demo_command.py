"""`lambdanets demo` as a process: what it prints, and that it leaves no files."""

import dataclasses
import os
import signal
import subprocess
import sys

import pytest
from PIL import Image

import lambdanets as ln
from lambdanets.cli import main

gr = pytest.importorskip("gradio", reason="gradio is not installed")


def test_occupied_port_is_a_users_error(capsys):
    import socket

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
def test_signals_end_the_server_and_leave_no_files(tmp_path):
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
        folder = tmp_path / number.name
        assert [name.rpartition("-")[0] for name in temporary_files(folder)] == ["lambdanets-demo"]
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (130, "")
        assert not temporary_files(folder)
        assert not list((folder / "working").iterdir())


def temporary_files(folder):
    names = [path.name for path in (folder / "temporary").iterdir()]
    return [name for name in names if not name.startswith("torchinductor_")]  # PyTorch makes this folder on import


def test_page_of_a_model_without_lambda_layers_says_so(tmp_path):
    from lambdanets.web import page, texts
    from lambdanets.web.predictions import predict_image

    digits = ln.load("digits", device="cpu")
    network = ln.create_model("resnet20_mixer_small", num_classes=10, in_chans=1, mixer="convolution").eval()
    model = dataclasses.replace(digits, model=network)
    with gr.Blocks():
        tab = page._ImageTab({"plain": model})
    prediction = predict_image(model, Image.new("L", (8, 8)), "black")
    assert tab.update_maps(prediction, None, None, 3, 4) == {tab.maps: texts.NO_LAYERS}
