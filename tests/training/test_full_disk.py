"""Training on a full disk, simulated by a file size limit."""

import resource

import torch

from lambdanets.cli import main
from training.runs import assert_same_result, at_step

OPTIONS = "--channels 3 --image-size 8 --epochs 2 --batch-size 6 --drop-path 0.2 --checkpoint-every 1 --warmup-epochs 1"
SHALLOW = "--model-options layers [1,1,1,1] lambda_blocks [[],[],[1],[]]"


def test_run_stopped_by_a_file_size_limit_resumes_bit_identically(two_classes, tmp_path, monkeypatch, capsys):
    # the limit applies from step 3; without Python's handling of SIGXFSZ, exceeding it would kill the process
    command = ["train", "--data", str(two_classes), *OPTIONS.split(), *SHALLOW.split(), "--run"]
    assert main([*command, str(tmp_path / "uninterrupted")]) == 0
    command.append(str(tmp_path / "run"))
    old_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
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
