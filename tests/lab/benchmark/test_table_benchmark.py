"""`lambdanets benchmark tables`, on small images, and its results in `lambdanets tables`."""

import json

from lambdanets.cli import main
from lambdanets_lab.benchmark.report import RESULTS

QUICK = ["--repeats", "3", "--seconds", "0.01", "--device", "cpu", "--image-size", "32"]


def test_tables_show_the_measured_speeds(tmp_path, capsys):
    out = tmp_path / "speed"
    rows = ["--candidates", "C-C-C-C", "C-C-C-L"]
    arguments = ["benchmark", "tables", "--tables", "12", "13", *rows, "--batch-size", "2", *QUICK]
    assert main([*arguments, "--out", str(out)]) == 0
    results = json.loads((out / RESULTS).read_text())
    assert results["finished"]
    assert [(row["sizes"], row["candidate"]) for row in results["rows"]] == [
        ({"table": "12", "pass": "inference"}, "C-C-C-C"),
        ({"table": "12", "pass": "inference"}, "C-C-C-L"),
    ]
    assert all(row["peak_bytes"] > 2 * 3 * 32 * 32 for row in results["rows"])
    assert all(len(row["seconds"]) in (3, 6, 9) for row in results["rows"])  # noisy rows run again
    header = next(line for line in capsys.readouterr().out.splitlines() if "images/s" in line)
    assert "/ C-C-C-C" in header
    assert "error" not in header
    assert main(["tables", "12", "--measured", str(out / RESULTS)]) == 0
    printed = capsys.readouterr().out
    assert "1.00x the speed of C-C-C-C (paper: 1.00x); batch 2, 32 px, peak" in printed
    assert "x the speed of C-C-C-C (paper: 0.99x); batch 2, 32 px, peak" in printed
    assert "Speeds measured on " in printed
