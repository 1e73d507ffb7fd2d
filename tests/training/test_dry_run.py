"""`lambdanets train --dry-run`: data, steps, micro-batches and time of a recipe of any task."""

import re

import pytest

from lambdanets.cli import main

QUICK = {
    "digits": "--image-size 16",
    "scattered_digits": "--image-size 32 --sampled-regions 16",
    "digit_masks": "--image-size 32",
}


@pytest.mark.parametrize("name", QUICK)
def test_dry_run_prints_images_steps_and_time_and_writes_nothing(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = "--training-images 50 --epochs 3 --batch-size 20 --micro-batch 8 --dry-run"
    assert main(["train", name, *QUICK[name].split(), *options.split()]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["classes:"].startswith("10 (0, 1, 2")
    assert lines["data"].startswith("50 training and ")
    assert lines["steps"] == "3 per epoch, 9 in 3 epochs; 20 images per step"
    assert lines["memory"] == "micro-batches of 7 images fit, 3 per step"
    assert re.match(r"[\d,]+ ms per step with the largest image", lines["speed"])
    assert not list(tmp_path.iterdir())


def test_run_and_dry_run_say_that_a_batch_is_larger_than_the_data(quick, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = f"--data {quick.data} --channels 3 --image-size 8 --epochs 1 --batch-size 64 --warmup-epochs 0".split()
    for more in (["--dry-run"], ["--run", "run"]):
        assert main(["train", "digits", *options, *more]) == 0
        printed = capsys.readouterr()
        assert "batch_size is 64, with 16 training images: an epoch is one step; choose" in printed.err
    assert "trained 1 epoch in" in printed.out
