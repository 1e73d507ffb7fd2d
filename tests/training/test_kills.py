"""Runs killed with SIGKILL, with the functions of experiments/kills.py."""

import functools
import time
from dataclasses import replace

import pytest

from scripts import load_script


@pytest.fixture(scope="module")
def script():
    return load_script("experiments/kills.py")


def block_at_call(patch, owner, name, count):
    """Make a function block at its count-th call until the process is killed."""
    original, calls = getattr(owner, name), iter(range(1, count))

    @functools.wraps(original)
    def block(*arguments, **options):
        if next(calls, None) is None:
            time.sleep(600)
        return original(*arguments, **options)

    patch.setattr(owner, name, block)


@pytest.fixture
def blocked_phases(script, monkeypatch):
    """Make the phase in which a run is killed last until the kill, however fast the machine is."""
    original = script.run_child

    def run_child(recipe, folder, kill_point=None):
        with monkeypatch.context() as patch:
            for owner, name in script.PHASES.get(kill_point.event, ()) if kill_point else ():
                block_at_call(patch, owner, name, kill_point.count)
            return original(recipe, folder, kill_point)

    monkeypatch.setattr(script, "run_child", run_child)


@pytest.mark.slow
@pytest.mark.forks
@pytest.mark.usefixtures("blocked_phases")
def test_killed_run_resumes_bit_identically_in_every_phase(script, tmp_path):
    recipe = replace(script.make_recipe(script.write_images(tmp_path / "images")), epochs=2)
    script.run_child(recipe, tmp_path / "uninterrupted")
    folder = tmp_path / "run"
    kills = [
        script.kill_and_check(recipe, tmp_path / "uninterrupted", folder, script.KillPoint(*kill_point))
        for kill_point in (
            (script.HALF_FILE, 1),  # recipe.json
            (script.RENAME, 4),  # of the third checkpoint, after last.ckpt was renamed to before.ckpt
            ("weights, figures, result", 1, 0.1),
        )
    ]
    assert [kill["phase"] for kill in kills] == [
        "creating the folder",
        "writing a checkpoint",
        "weights, figures, result",
    ]
    assert [kill["left_unfinished_file"] for kill in kills] == [True, True, False]
    assert [kill["left_only_before_ckpt"] for kill in kills] == [False, True, False]
    script.run_child(recipe, folder)
    script.check_bit_identical(tmp_path / "uninterrupted", folder)
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(AssertionError, match=r"ended with a different weights\.safetensors"):
        script.check_bit_identical(tmp_path / "uninterrupted", folder)
