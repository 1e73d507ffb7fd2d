from types import SimpleNamespace

import torch

from lambdanets import device

GIB = 2**30


def test_free_memory_is_the_minimum_over_cgroups_and_has_the_page_cache(tmp_path, monkeypatch):
    root, membership = tmp_path / "cgroups", tmp_path / "membership"
    monkeypatch.setattr(device.psutil, "virtual_memory", lambda: SimpleNamespace(available=100 * GIB))

    def write(path, *, limit_gib, used_gib, cache_gib=0):
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "memory.max").write_text(f"{limit_gib * GIB if isinstance(limit_gib, int) else limit_gib}\n")
        (root / path / "memory.current").write_text(f"{used_gib * GIB}\n")
        (root / path / "memory.stat").write_text(f"active_file 7\ninactive_file {cache_gib * GIB}\nslab 3\n")

    def free(path="/"):
        membership.write_text(f"5:cpu:/elsewhere\n0::{path}\n")
        return device.free_memory(torch.device("cpu"), root, membership) / GIB

    assert free() == 100  # of the machine
    write("", limit_gib="max", used_gib=10)
    assert free() == 100
    write("", limit_gib=64, used_gib=10)
    write("jobs", limit_gib=16, used_gib=8, cache_gib=1)
    write("jobs/one", limit_gib=32, used_gib=2, cache_gib=1)
    write("full", limit_gib=4, used_gib=5)
    assert free("/jobs/one") == 9
    assert free("/full") == 0
    for path in ("/", "/docker/0123456789", "/../above"):  # in a container, the folder of its own cgroup is the root
        assert free(path) == 54
