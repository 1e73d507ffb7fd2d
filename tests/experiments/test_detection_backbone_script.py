import functools
import json
import sys
from types import SimpleNamespace

import pytest

from lambdanets_lab.benchmark import peers
from scripts import ROOT, call_main, load_script

SCRIPT = ROOT / "experiments/detection_backbone.py"


@pytest.fixture
def script(monkeypatch):
    """The script, with a shallow lambda_resnet50."""
    script = load_script("experiments/detection_backbone.py")
    shallow = {"layers": (1, 1, 2, 1), "lambda_blocks": ((), (), (1, 2), (1,))}
    monkeypatch.setattr(script, "create_model", functools.partial(script.create_model, **shallow))
    return script


def test_every_candidate_is_correct_and_measured_in_both_passes(script, monkeypatch, tmp_path):
    out = tmp_path / "results.json"
    call_main(
        script,
        monkeypatch,
        "--size",
        64,
        "--seconds",
        0.01,
        "--repeats",
        1,
        "--out",
        out,
        "--candidates",
        *script.ROWS,
        script.STRIDE_8,
    )
    results = json.loads(out.read_text())
    assert [(row["candidate"], row["sizes"]["pass"]) for row in results["rows"]] == [
        (name, phase) for phase in script.PASSES for name in script.ROWS
    ]
    for row in results["rows"]:
        if row["candidate"] == "lambda-networks" and peers.installed_version("lambda-networks") is None:
            continue
        assert row["skip_reason"] is None
        assert max(row["errors"].values()) < 1e-4
        assert row["median_seconds"] > 0 < row["peak_bytes"]
    assert results["stride_8"].keys() == script.ROWS.keys()
    assert results["stride_8"]["convolution"] > 0 < results["stride_8"][script.LAMBDA_LAYER]
    assert {"commit", "versions", "hardware"} <= results.keys()


def test_attention_that_exceeds_free_memory_is_skipped(script, monkeypatch):
    backbones = script.Backbones(64, backward=True)
    needed = backbones.attention_bytes(unfused=True)
    monkeypatch.setattr(script, "free_memory", lambda device: needed - 1)
    with pytest.raises(script.Skipped, match=r"does not fit: needs [\d.]+ GiB of [\d.]+"):
        backbones.prepare("global-attention-maps")
    backbones.prepare("convolution")


def test_predicted_attention_maps_grow_quadratically_with_positions(script):
    small, large = (script.Backbones(size, backward=False) for size in (64, 128))
    assert large.attention_bytes(unfused=True) == 16 * small.attention_bytes(unfused=True)


def test_training_step_is_measured_in_a_separate_process(script, monkeypatch, tmp_path, capsys):
    small = {"pyramid_channels": 16, "box_layers": (1, 16), "mask_layers": 1, "box_batch_size_per_image": 16}
    monkeypatch.setattr(script, "mask_rcnn", functools.partial(script.mask_rcnn, **small))

    def run(command, **options):
        assert command[:2] == [sys.executable, str(SCRIPT)]
        call_main(script, monkeypatch, *command[2:])
        return SimpleNamespace(stdout=capsys.readouterr().out)

    monkeypatch.setattr(script, "subprocess", SimpleNamespace(run=run, PIPE=None))
    call_main(
        script, monkeypatch, "--size", 64, "--candidates", script.TRAINING_STEP, "--out", tmp_path / "results.json"
    )
    step = json.loads((tmp_path / "results.json").read_text())["training_step"]
    assert len(step["seconds"]) == 2
    assert step["peak_resident_bytes"] > step["peak_bytes"] > 0
