"""Commands killed with SIGKILL, with the functions of experiments/kills.py."""

import json
import multiprocessing
import shutil
import signal
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from scripts import load_script

script = load_script("experiments/kills.py")


def fork(arguments, log, kill=None):
    """`start` in a fork of this process, which saves the time of imports."""

    def run():
        sys.stdout = sys.stderr = log.open("w", buffering=1)
        script.run_child(json.dumps(None if kill is None else asdict(kill)), arguments)

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    process.start()
    return SimpleNamespace(wait=lambda limit: process.join(limit) or process.exitcode)


@pytest.mark.forks
@pytest.mark.slow
def test_killed_run_resumes_bit_identically(two_classes, tmp_path, monkeypatch):
    reference = tmp_path / "reference/run"
    reference.parent.mkdir()
    command = script.Command(
        f"train digits --data {two_classes} {script.TRAIN} --run {{}}", "last.ckpt", ("result.json",)
    )
    code, _, output = script.run(command.arguments.format(reference).split(), tmp_path / "log")
    assert code == 0, output
    monkeypatch.setattr(script, "start", fork)
    kills = [
        script.Kill(signal.SIGKILL, event=script.HALF_FILE),  # recipe.json
        script.Kill(signal.SIGKILL, event=script.RENAME, count=5),  # of the second last.ckpt
    ]
    results = script.kill_and_check(command, reference, tmp_path / "killed", kills)
    assert [(kill["finished"], kill["unfinished"]) for kill in results] == [(0, True), (1, True)]
    changed = tmp_path / "changed/run"
    shutil.copytree(reference, changed)
    weights = changed / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(AssertionError, match=r"ended with a different weights\.safetensors"):
        script.check_equal(command, reference, changed)
