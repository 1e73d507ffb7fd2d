import json
import math

import pytest
import torch

from lambdanets import calibration
from lambdanets.calibration.rates import _solve_half_peak_side
from lambdanets.calibration.timing import median_seconds
from lambdanets.cli import main
from lambdanets.ops.position import rates
from lambdanets.ops.position.rates import Rates, calibration_file, calibration_key, read_calibration


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAMBDANETS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_calibrate_measures_and_caches_rates(cache, capsys):
    assert main(["calibrate", "--threads", str(torch.get_num_threads())]) == 0
    output = capsys.readouterr().out
    cached = read_calibration("cpu", torch.get_num_threads())
    assert calibration_file() == cache / "rates.json"
    assert str(cache) in output
    assert f"{cached.operations_per_second:.3g}" in output
    assert all(0 < value < math.inf for value in vars(cached).values()), cached
    x, side = torch.randn(512, 512), 512
    measured = 2 * side**3 / median_seconds(lambda: x @ x, "cpu")
    assert measured / 30 < cached.operations_per_second < measured * 30


def test_rates_are_cached_per_thread_count(cache):
    cache.mkdir()
    expected = Rates(1e9, 2, 3e9, 4e-6, 5e9, 6)
    (cache / "rates.json").write_text(json.dumps({calibration_key("cpu", 3): vars(expected)}))
    assert read_calibration("cpu", 3) == expected
    assert read_calibration("cpu", 4) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"%s": {}}', '{"%s": {"half_peak_side": "x"}}'])
def test_corrupt_calibration_file_is_ignored(text, cache):
    cache.mkdir()
    (cache / "rates.json").write_text(text.replace("%s", calibration_key("cpu", 2)))
    assert read_calibration("cpu", 2) is None


def test_negative_rates_are_ignored(cache):
    cache.mkdir()
    invalid = vars(Rates(1e9, 2, 3e9, 4e-6, -5e9, 6))
    (cache / "rates.json").write_text(json.dumps({calibration_key("cpu", 2): invalid}))
    assert read_calibration("cpu", 2) is None


def test_planner_uses_calibrated_rates(cache):
    cache.mkdir()
    expected = Rates(1e9, 2, 3e9, 4e-6, 5e9, 6)
    (cache / "rates.json").write_text(json.dumps({calibration_key("cpu", torch.get_num_threads()): vars(expected)}))
    rates._device_rates.cache_clear()
    try:
        assert rates.device_rates("cpu") == expected
    finally:
        rates._device_rates.cache_clear()


def test_calibration_rejects_an_unsupported_device():
    with pytest.raises(ValueError, match=r"device must be cpu.*, got 'tpu'"):
        calibration.calibrate("tpu")


def test_calibrate_rejects_zero_threads(capsys):
    assert main(["calibrate", "--threads", "0"]) == 2
    assert capsys.readouterr().err == "lambdanets: threads must be at least 1, got 0\n"


def test_half_peak_side_is_recovered_from_the_slowdown():
    side = 5.0
    slowdown = (1 + side / 32) * (1 + side / 16) * (1 + side / 256)
    assert _solve_half_peak_side(slowdown) == pytest.approx(side, abs=0.02)


def test_calibrates_the_cpu_by_its_other_name(cache):
    calibration.calibrate("cpu:0")
    assert read_calibration("cpu", torch.get_num_threads()) is not None
