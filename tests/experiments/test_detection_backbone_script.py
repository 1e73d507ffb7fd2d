import functools
import json
import sys
from types import SimpleNamespace

from lambdanets_lab.benchmark import peers
from scripts import ROOT, call_main, load_script


def test_every_candidate_is_correct_and_measured_in_both_passes(monkeypatch, tmp_path, capsys):
    script = load_script("experiments/detection_backbone.py")
    shallow = {"layers": (1, 1, 2, 1), "lambda_blocks": ((), (), (1, 2), (1,))}
    small = {"pyramid_channels": 16, "box_layers": (1, 16), "mask_layers": 1, "box_batch_size_per_image": 16}
    monkeypatch.setattr(script, "create_model", functools.partial(script.create_model, **shallow))
    monkeypatch.setattr(script, "mask_rcnn", functools.partial(script.mask_rcnn, **small))

    def run(command, **options):
        assert command[:2] == [sys.executable, str(ROOT / "experiments/detection_backbone.py")]
        capsys.readouterr()
        call_main(script, monkeypatch, *command[2:])
        return SimpleNamespace(stdout=capsys.readouterr().out)

    monkeypatch.setattr(script, "subprocess", SimpleNamespace(run=run, PIPE=None))
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
        assert max(row["errors"].values()) < 1e-4
        assert row["median_seconds"] > 0 < row["peak_bytes"]
    assert results["stride_8"].keys() == script.ROWS.keys()
    assert results["stride_8"]["convolution"] > 0 < results["stride_8"][script.LAMBDA_LAYER]
    step = results["training_step"]
    assert len(step["seconds"]) == 2
    assert step["peak_resident_bytes"] > step["peak_bytes"] > 0
    assert {"commit", "versions", "hardware"} <= results.keys()
