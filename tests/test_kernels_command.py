import pytest
import torch

from lambdanets import device
from lambdanets.cli import main
from lambdanets.ops.position import fused_check
from lambdanets.ops.position.native import load_library


def test_kernels_names_the_library_and_threads_of_the_processor(capsys):
    assert main(["kernels"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("compiled library: ")
    assert load_library() is None or lines[0].endswith(load_library().name)
    assert lines[1] == f"threads: {torch.get_num_threads()}"


@pytest.mark.parametrize("failed", ["", "grad_table raises RuntimeError: out of registers"])
def test_kernels_prints_the_check_of_a_gpu(failed, capsys, monkeypatch):
    pytest.importorskip("triton", reason="the kernels need Triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(device, "resolve_device", torch.device)
    monkeypatch.setattr(fused_check, "failures", lambda *arguments: failed)
    assert main(["kernels", "--device", "cuda:0"]) == (1 if failed else 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Triton's interpreter, torch ")
    result = failed or "all kernels are right"
    assert lines[1:] == [f"torch.bfloat16: {result}", f"torch.float32: {result}"]
