"""`lambdanets benchmark` end to end, on tiny shapes."""

import json
import os
import signal

import pytest

from commands import fail
from lambdanets.cli import main
from lambdanets.files import is_output
from lambdanets_lab import paper_models
from lambdanets_lab.benchmark import layer, model, scaling
from lambdanets_lab.benchmark import run as benchmark
from lambdanets_lab.benchmark.measurement import Row
from lambdanets_lab.benchmark.report import color_and_marker, fit_exponents
from lambdanets_lab.benchmark.run import RESULTS

QUICK = ["--repeats", "3", "--seconds", "0.01", "--device", "cpu", "--threads", "2"]
COMMANDS = {
    "layer": ["--shapes", "4x5x8", "--scopes", "3", "--batch-size", "2", *QUICK],
    "model": ["--image-size", "64", "--batch-size", "2", "--patterns", "CCCL", "--scope", "3", *QUICK],
    # a large --seconds, since on a busy machine even tiny sizes may exceed a small one and be skipped
    "scaling": ["--sides", "3", "4", "--lengths", "8", "--repeats", "3", "--seconds", "600", "--device", "cpu"],
}
NUM_ROWS = {"layer": 2 * len(layer.DEFAULTS), "model": 2 * len(model.NAMES), "scaling": 6 * len(scaling.NAMES)}


@pytest.mark.figures
@pytest.mark.parametrize("kind", COMMANDS)
def test_benchmark_writes_results_and_figures(kind, tmp_path, capsys, monkeypatch):
    create_model = paper_models.create_model

    def create_small(name, **options):
        blocks = {"lambda_blocks": ((), (), (), (1,))} if "pattern" in options else {}
        return create_model(name, layers=(1, 1, 1, 1), **options | blocks)

    monkeypatch.setattr(paper_models, "create_model", create_small)
    out = tmp_path / "new/folder"
    assert main(["benchmark", kind, *COMMANDS[kind], "--out", str(out)]) == 0
    results = json.loads((out / RESULTS).read_text())
    assert len(results["rows"]) == NUM_ROWS[kind]
    ran = [row for row in results["rows"] if row["skip_reason"] is None]
    candidates = {row["candidate"] for row in ran}
    assert {"lambdanets", "timm", "convolution", "lambdanets CCCL", "resnet50", "row_transform"} & candidates
    reasons = [row["skip_reason"] for row in results["rows"] if row not in ran]
    assert all("not installed" in reason or "for CUDA devices" in reason for reason in reasons)
    assert kind != "layer" or all(row["errors"] for row in ran)
    assert {"commit", "versions", "hardware"} <= results.keys()
    assert all(row["peak_bytes"] and len(row["seconds"]) == 3 for row in ran)
    assert (out / f"{kind}.png").is_file() == is_output({path.name for path in out.iterdir()}) == (kind != "model")
    printed = capsys.readouterr().out
    assert all(row["candidate"] in printed for row in results["rows"])
    assert f"written to {out}" in printed


def test_interrupted_benchmark_keeps_finished_cases_and_resumes(tmp_path, capsys, monkeypatch):
    measure_case, out = benchmark.measure_case, tmp_path / "out"

    def with_signal(case, *arguments, **options):
        if case.sizes["pass"] == "training":
            os.kill(os.getpid(), signal.SIGINT)
        return measure_case(case, *arguments, **options)

    arguments = ["benchmark", "layer", *COMMANDS["layer"], "--candidates", "lambdanets", "timm", "--out", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "measure_case", with_signal)
        assert main(arguments) == 130
    reached = json.loads((out / RESULTS).read_text())["rows"]
    assert [row["sizes"]["pass"] for row in reached] == ["inference"] * 2
    assert f"stopped; resume with the same command and --out {out}\n" in capsys.readouterr().err
    assert "query_depth must be 16, got 8, since" in fail(capsys, *arguments, "--query-depth", "8")
    assert main(arguments) == 0
    resumed = json.loads((out / RESULTS).read_text())
    assert resumed["hardware"]["threads"] == 2
    assert resumed["rows"][:2] == reached
    assert [row["sizes"]["pass"] for row in resumed["rows"]] == ["inference"] * 2 + ["training"] * 2
    assert not list(out.glob(".*"))
    assert main(arguments) == 0
    assert json.loads((out / RESULTS).read_text()) == resumed


def test_tables_show_the_measured_speeds(tmp_path, capsys):
    out = tmp_path / "speed"
    command = "benchmark tables --tables 12 13 --candidates C-C-C-C C-C-C-L --batch-size 2 --image-size 32"
    assert main([*command.split(), *QUICK, "--out", str(out)]) == 0
    results = json.loads((out / RESULTS).read_text())
    rows = [(*row["sizes"].values(), row["candidate"]) for row in results["rows"]]
    assert rows == [("12", "inference", "C-C-C-C"), ("12", "inference", "C-C-C-L")]
    assert all(row["peak_bytes"] > 2 * 3 * 32 * 32 for row in results["rows"])
    assert all(len(row["seconds"]) == 3 for row in results["rows"])
    header = next(line for line in capsys.readouterr().out.splitlines() if "images/s" in line)
    assert "/ C-C-C-C" in header
    assert "error" not in header
    assert main(["tables", "12", "--measured", str(out / RESULTS)]) == 0
    printed = capsys.readouterr().out
    assert "1.00x the speed of C-C-C-C (paper: 1.00x); batch 2, 32 px, peak" in printed
    assert "x the speed of C-C-C-C (paper: 0.99x); batch 2, 32 px, peak" in printed
    assert "Speeds measured on " in printed


def test_networks_are_measured_with_one_small_image(tmp_path):
    command = "benchmark model --patterns CCCL --candidates resnet50 --image-size 32 --batch-size 1 --passes inference"
    assert main([*command.split(), *QUICK, "--out", str(tmp_path / "out")]) == 0


def test_exponent_is_fitted_to_the_larger_half_of_sizes():
    sizes, times = {"setting": "square map", "pass": "inference"}, {16: 1.0, 64: 1.0, 256: 2.0, 1024: 8.0}
    rows = [Row(sizes | {"n": n}, "convolution", seconds=[seconds]) for n, seconds in times.items()]
    assert fit_exponents(rows) == {("convolution", "square map", "inference"): pytest.approx(1.0)}


def test_layers_in_a_figure_differ_in_color_or_marker():
    assert len({color_and_marker(name, layer.NAMES) for name in layer.NAMES}) == len(layer.NAMES)
