from types import SimpleNamespace

import torch

from lambdanets import device


def test_free_memory_of_a_container_is_that_below_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "CGROUP", tmp_path)
    monkeypatch.setattr(device.psutil, "virtual_memory", lambda: SimpleNamespace(available=100))
    files = {"memory.max": "max", "memory.current": "20\n", "memory.stat": "active_file 7\ninactive_file 3\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert device.free_memory(torch.device("cpu")) == 100
    (tmp_path / "memory.max").write_text("64\n")
    assert device.free_memory(torch.device("cpu")) == 64 - 20 + 3
