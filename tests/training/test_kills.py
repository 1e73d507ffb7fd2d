"""Runs killed by SIGKILL, by the functions of experiments/kills.py."""

import functools
import time
from dataclasses import replace

import pytest

from scripts import load_script


@pytest.fixture(scope="module")
def script():
    return load_script("experiments/kills.py")


def hold(patch, owner, name, count):
    """Let a function block at its count-th call until the process is killed."""
    original, calls = getattr(owner, name), iter(range(1, count))

    @functools.wraps(original)
    def block(*arguments, **options):
        if next(calls, None) is None:
            time.sleep(600)
        return original(*arguments, **options)

    patch.setattr(owner, name, block)


@pytest.fixture
def held_phases(script, monkeypatch):
    """Let the phase of a kill last until the kill, on fast and on busy machines."""
    original = script.run_child

    def run_child(recipe, folder, kill_point=None):
        with monkeypatch.context() as patch:
            for owner, name in script.PHASES.get(kill_point.event, ()) if kill_point else ():
                hold(patch, owner, name, kill_point.count)
            return original(recipe, folder, kill_point)

    monkeypatch.setattr(script, "run_child", run_child)


@pytest.mark.slow
@pytest.mark.forks
@pytest.mark.usefixtures("held_phases")
def test_killed_run_resumes_to_the_same_bits_in_every_phase(script, tmp_path):
    recipe = replace(script.make_recipe(script.write_images(tmp_path / "images")), epochs=2)
    script.run_child(recipe, tmp_path / "unbroken")
    folder = tmp_path / "run"
    found = [
        script.kill_and_check(recipe, tmp_path / "unbroken", folder, script.KillPoint(*kill_point))
        for kill_point in (
            (script.HALF_FILE, 1),  # recipe.json
            (script.RENAME, 4),  # the third checkpoint's, when last.ckpt is before.ckpt already
            ("weights, figures, result", 1, 0.1),
        )
    ]
    assert [kill["phase"] for kill in found] == [
        "creating the folder",
        "writing a checkpoint",
        "weights, figures, result",
    ]
    assert [kill["left_unfinished_file"] for kill in found] == [True, True, False]
    assert [kill["left_only_before_ckpt"] for kill in found] == [False, True, False]
    script.run_child(recipe, folder)
    script.check_bit_identical(tmp_path / "unbroken", folder)
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(AssertionError, match=r"ended with a different weights\.safetensors"):
        script.check_bit_identical(tmp_path / "unbroken", folder)
