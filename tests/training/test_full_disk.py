"""Training on a full disk, simulated by a small tmpfs and by a file size limit."""

import ctypes
import errno
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lambdanets.cli import main
from training.runs import assert_same_result, at_step

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
FIELDS = {
    "channels": 3,
    "image-size": 8,
    "epochs": 2,
    "batch-size": 6,
    "drop-path": 0.2,
    "checkpoint-every": 1,
    "warmup-epochs": 1,
}


def can_mount() -> bool:
    """Whether processes on this machine may create private mounts."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    return (
        subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
    )


@pytest.fixture
def options(two_classes, tmp_path) -> list[str]:
    """The command-line options of a finished run in tmp_path / "uninterrupted"."""
    options = ["--data", str(two_classes), *(f"--{name}={value}" for name, value in FIELDS.items())]
    assert main(["train", *options, "--run", str(tmp_path / "uninterrupted")]) == 0
    return options


def check_stopped(folder: Path) -> None:
    """Check that the checkpoint before the failed write is intact and that no partial file is left."""
    assert torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"] == 2
    assert list(folder.rglob("*.unfinished")) == []
    assert not (folder / "result.json").exists()


def unshare_mounts() -> None:
    """Give this process private mounts, as `unshare -rm` does. The process must have a single thread."""
    maps = {"setgroups": "deny", "uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    deadline = time.monotonic() + 10
    while unshare(CLONE_NEWUSER | CLONE_NEWNS):
        # EINVAL: a thread that a library started after the fork has not ended yet
        if ctypes.get_errno() != errno.EINVAL or time.monotonic() > deadline:
            raise OSError(ctypes.get_errno(), "unshare")
        time.sleep(0.1)
    for name, content in maps.items():
        Path("/proc/self", name).write_text(content)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def train_on_a_full_disk(disk: Path, out: Path, size: int, options: list[str]) -> None:
    """Train on a tmpfs that is too small, copy the run folder, and train again with enough space."""
    torch.set_num_threads(1)
    unshare_mounts()
    exit_codes = []
    for name, mount_options in (("stopped", f"size={size}"), ("finished", "remount,size=1g")):
        subprocess.run(["mount", "-t", "tmpfs", "-o", mount_options, "none", disk], check=True)
        exit_codes.append(main(["train", *options, "--run", f"{disk}/run"]))
        shutil.copytree(f"{disk}/run", out / name)
    (out / "exit_codes.json").write_text(json.dumps(exit_codes))


@pytest.mark.slow
@pytest.mark.forks
@pytest.mark.skipif(not can_mount(), reason="needs unshare and the permission to mount")
def test_run_stopped_by_a_full_disk_resumes_when_space_is_free(options, tmp_path, capfd):
    size = (tmp_path / "uninterrupted/checkpoints/last.ckpt").stat().st_size * 5 // 2  # two and a half checkpoints
    (tmp_path / "disk").mkdir()
    capfd.readouterr()
    arguments = (tmp_path / "disk", tmp_path, size, options)
    process = multiprocessing.get_context("fork").Process(target=train_on_a_full_disk, args=arguments)
    process.start()
    process.join(timeout=240)
    assert process.exitcode == 0
    assert json.loads((tmp_path / "exit_codes.json").read_text()) == [2, 0]
    (error,) = capfd.readouterr().err.strip().splitlines()
    assert "best.ckpt: No space left on device; once fixed, resume with: " in error
    assert error.endswith(f"lambdanets train --resume {tmp_path}/disk/run")
    check_stopped(tmp_path / "stopped")
    assert_same_result(tmp_path / "uninterrupted", tmp_path / "finished")


def test_run_stopped_by_a_file_size_limit_resumes_bit_identically(options, tmp_path, monkeypatch, capsys):
    # the limit applies from step 3; without Python's handling of SIGXFSZ, exceeding it would kill the process
    old_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    command = ["train", *options, "--run", str(tmp_path / "run")]
    with monkeypatch.context() as patch:
        at_step(patch, 3, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old_limits[1])))
        try:
            exit_code = main(command)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old_limits)
    assert exit_code == 2
    assert "last.ckpt: File too large; once fixed, resume with: " in capsys.readouterr().err.splitlines()[-1]
    assert torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["global_step"] == 3
    assert list((tmp_path / "run").rglob("*.unfinished")) == []
    assert main(command) == 0
    assert_same_result(tmp_path / "uninterrupted", tmp_path / "run")
