import signal
import subprocess

import pytest

from lambdanets import device


@pytest.mark.parametrize(("code", "refused"), [(-signal.SIGILL, True), (0, False)])
def test_bfloat16_is_refused_where_it_would_end_the_process(code, refused, monkeypatch):
    monkeypatch.setattr(device.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], code))
    if refused:
        with pytest.raises(ValueError, match=r"announces and refuses; set ONEDNN_MAX_CPU_ISA"):
            device.check_precision("bf16-mixed")
    else:
        device.check_precision("bf16-mixed")


def test_float32_needs_no_probe(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("probed"))
    device.check_precision("32-true")


def test_float16_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(device.torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="16-mixed needs a GPU"):
        device.check_precision("16-mixed")
