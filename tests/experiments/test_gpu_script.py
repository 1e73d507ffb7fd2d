import pytest

from scripts import call_main, load_script


@pytest.mark.slow
def test_parts_run_without_a_gpu_on_tiny_problems(tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="the kernels need Triton")
    script = load_script("experiments/gpu.py")
    call_main(script, monkeypatch, "--out", tmp_path, "--parts", "machine", "kernels")
    rows = script.read_rows(tmp_path / "gpu.jsonl")
    if any("only 0-dimensional arrays" in row.get("failure", "") for row in rows):
        pytest.skip("this version of Triton's interpreter does not support this version of NumPy")
    assert not [row for row in rows if "failure" in row]
    assert len([row for row in rows if row.get("eager_us", 0) > 0]) == 4


def test_part_is_killed_at_the_end_of_its_time(tmp_path, monkeypatch):
    script = load_script("experiments/gpu.py")
    (tmp_path / "gpu.py").write_text("import time\ntime.sleep(600)")
    monkeypatch.setattr(script, "__file__", str(tmp_path / "gpu.py"))
    monkeypatch.setattr(script, "SECONDS_TO_STOP", 1)
    script.run_part("check", tmp_path / "gpu.jsonl", 1)
    (row,) = script.read_rows(tmp_path / "gpu.jsonl")
    assert row["failure"] == "exceeded 1 s"
