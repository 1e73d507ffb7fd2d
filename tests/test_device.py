from types import SimpleNamespace

import pytest
import torch

from lambdanets import device

GIB = 2**30


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """A function that writes one cgroup of a synthetic hierarchy; its `free(path)` returns the free memory in GiB."""
    root = tmp_path / "cgroups"
    monkeypatch.setattr(device.psutil, "virtual_memory", lambda: SimpleNamespace(available=100 * GIB))

    def write(path, *, limit_gib, used_gib, cache_gib=0):
        (root / path).mkdir(parents=True, exist_ok=True)
        (root / path / "memory.max").write_text(f"{limit_gib * GIB if isinstance(limit_gib, int) else limit_gib}\n")
        (root / path / "memory.current").write_text(f"{used_gib * GIB}\n")
        (root / path / "memory.stat").write_text(f"active_file 7\ninactive_file {cache_gib * GIB}\nslab 3\n")

    def free(path="/"):
        (tmp_path / "membership").write_text(f"5:cpu:/elsewhere\n0::{path}\n")
        return device.free_memory(torch.device("cpu"), tmp_path / "cgroups", tmp_path / "membership") / GIB

    write.free = free
    return write


def test_free_memory_is_the_minimum_over_cgroups_and_has_the_page_cache(cgroup):
    assert cgroup.free() == 100  # of the machine
    cgroup("", limit_gib="max", used_gib=10)
    assert cgroup.free() == 100
    cgroup("", limit_gib=64, used_gib=10)
    cgroup("jobs", limit_gib=16, used_gib=8, cache_gib=1)
    cgroup("jobs/one", limit_gib=32, used_gib=2, cache_gib=1)
    cgroup("full", limit_gib=4, used_gib=5)
    assert cgroup.free("/jobs/one") == 9
    assert cgroup.free("/full") == 0
    for path in ("/", "/docker/0123456789", "/../above"):  # in a container, the folder of its own cgroup is the root
        assert cgroup.free(path) == 54
