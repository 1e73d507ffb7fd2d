import functools
import json

from lambdanets_lab.benchmark import peers
from scripts import call_main, load_script


def test_every_candidate_is_measured_in_both_passes(monkeypatch, tmp_path):
    script = load_script("experiments/detection_backbone.py")
    shallow = {"layers": (1, 1, 2, 1), "lambda_blocks": ((), (), (1, 2), (1,))}
    small = {"pyramid_channels": 16, "box_layers": (1, 16), "mask_layers": 1, "box_batch_size_per_image": 16}
    monkeypatch.setattr(script, "create_model", functools.partial(script.create_model, **shallow))
    monkeypatch.setattr(script, "mask_rcnn", functools.partial(script.mask_rcnn, **small))

    out = tmp_path / "results.json"
    call_main(script, monkeypatch, "--size", 64, "--seconds", 0.01, "--repeats", 1, "--out", out)
    results = json.loads(out.read_text())
    assert [(row["candidate"], row["sizes"]["pass"]) for row in results["rows"]] == [
        (name, phase) for phase in script.PASSES for name in script.ROWS
    ]
    for row in results["rows"]:
        if row["candidate"] == "lambda-networks" and peers.installed_version("lambda-networks") is None:
            continue
        assert row["skip_reason"] is None
        assert row["median_seconds"] > 0 < row["peak_bytes"]
    assert results["stride_8"].keys() == script.ROWS.keys()
    assert results["stride_8"]["convolution"] > 0 < results["stride_8"][script.LAMBDA_LAYER]
    assert len(results["training_step"]["seconds"]) == 2
    assert {"commit", "versions", "hardware"} <= results.keys()
