"""A full disk: a private tmpfs of the size of two and a half checkpoints, and a file size limit."""

import ctypes
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lambdanets.cli import main
from training.runs import assert_same_result, at_step

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
FIELDS = {"channels": 3, "image-size": 8, "epochs": 2, "batch-size": 6, "drop-path": 0.2, "checkpoint-every": 1}


def can_mount() -> bool:
    """Whether a process may create private mounts on this machine."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
    )


@pytest.fixture
def whole(two_classes, tmp_path) -> list[str]:
    """A finished run in tmp_path / "whole"; the fields of its recipe as options."""
    fields = ["--data", str(two_classes), *(f"--{name}={value}" for name, value in FIELDS.items())]
    assert main(["train", *fields, "--run", str(tmp_path / "whole")]) == 0
    return fields


def check_stopped(folder: Path) -> None:
    """The checkpoint before the failed one is intact, and no partial file is left."""
    assert torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 2
    assert list(folder.rglob("*.unfinished")) == []
    assert not (folder / "result.json").exists()


def unshare_mounts() -> None:
    """Give this process private mounts, as `unshare -rm` does; it must have one thread."""
    maps = {"setgroups": "deny", "uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUSER | CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, content in maps.items():
        Path("/proc/self", name).write_text(content)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def train_on_a_full_disk(disk: Path, out: Path, size: int, fields: list[str]) -> None:
    """Train on a full disk, copy the folder, and train again with enough space."""
    torch.set_num_threads(1)
    unshare_mounts()
    codes = []
    for name, space in (("stopped", f"size={size}"), ("ended", "remount,size=1g")):
        subprocess.run(["mount", "-t", "tmpfs", "-o", space, "none", disk], check=True)
        codes.append(main(["train", *fields, "--run", f"{disk}/run"]))
        shutil.copytree(f"{disk}/run", out / name)
    (out / "codes.json").write_text(json.dumps(codes))


@pytest.mark.slow
@pytest.mark.forks
@pytest.mark.skipif(not can_mount(), reason="needs unshare, and a kernel that lets users mount")
def test_run_stopped_by_a_full_disk_resumes_once_there_is_space(whole, tmp_path, capfd):
    size = (tmp_path / "whole/checkpoints/last.ckpt").stat().st_size * 5 // 2
    (tmp_path / "disk").mkdir()
    capfd.readouterr()
    arguments = (tmp_path / "disk", tmp_path, size, whole)
    process = multiprocessing.get_context("fork").Process(target=train_on_a_full_disk, args=arguments)
    process.start()
    process.join(timeout=240)
    assert process.exitcode == 0
    assert json.loads((tmp_path / "codes.json").read_text()) == [2, 0]
    (error,) = capfd.readouterr().err.strip().splitlines()
    assert error.endswith(
        "best.ckpt: No space left on device; the last checkpoint is intact; once fixed, resume with: "
        f"lambdanets train --resume {tmp_path}/disk/run"
    )
    check_stopped(tmp_path / "stopped")
    assert_same_result(tmp_path / "whole", tmp_path / "ended")


def test_run_stopped_by_a_file_size_limit_resumes_to_the_same_bits(whole, tmp_path, monkeypatch, capsys):
    # from the third step on, files are larger than the limit; Python ignores SIGXFSZ
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    command = ["train", *whole, "--run", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1])))
        try:
            code = main(command)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 2
    assert "last.ckpt: File too large; the last checkpoint is intact" in capsys.readouterr().err.splitlines()[-1]
    assert torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["global_step"] == 3
    assert list((tmp_path / "run").rglob("*.unfinished")) == []
    assert main(command) == 0
    assert_same_result(tmp_path / "whole", tmp_path / "run")
