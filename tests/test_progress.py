"""Progress: one line on a terminal, otherwise a line every 30 seconds, and nothing for fast loops."""

import re
import time

import pytest

from lambdanets import progress
from lambdanets.cli import main
from lambdanets.progress import Progress, format_duration, track


@pytest.fixture
def frequent_lines(monkeypatch):
    """Print a line every 0.05 instead of every 30 seconds."""
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0.05)


def wait_for_output(capsys, pattern, seconds=20):
    """Wait until the output on stderr matches, and return it."""
    output = ""
    deadline = time.monotonic() + seconds
    while not re.search(pattern, output):
        assert time.monotonic() < deadline, output
        time.sleep(0.02)
        output += capsys.readouterr().err
    return output


def test_fast_loops_print_nothing(capsys):
    assert list(track([1, 2, 3], "counting", 3, "figures")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")


def test_lines_show_count_speed_remaining_time_and_the_current_item(frequent_lines, capsys):
    with Progress("shards", 1000, "images") as bar:
        bar.update(500)
        bar.set_note("resnet50\x1b[2J, warming up")
        line = r"(?m)^shards: 500 of 1,000 images, [\d.e+]+ images/s, \d+ s left, resnet50\\x1b\[2J, warming up$"
        wait_for_output(capsys, line)


def test_lines_are_printed_during_a_single_slow_item_and_not_after_it(frequent_lines, capsys):
    with Progress("planning"):
        assert wait_for_output(capsys, "(?s)so far.*so far").startswith("planning: 0 s so far\n")
    capsys.readouterr()
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_one_line_that_changes(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Progress("shards", 10, "images") as line:
        line.update(5)
        wait_for_output(capsys, r"\rshards: 5 of 10 images, .* left")
        line.set_note("00000\x1b[2J.tar", label="labels")
        wait_for_output(capsys, r"\rlabels: 5 of 10 images, .* left, 00000\\x1b\[2J.tar")


def test_training_prints_epoch_step_loss_and_speed(two_classes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0.001)
    fields = ["--data", two_classes, "--channels", 3, "--image-size", 8, "--epochs", 3, "--batch-size", 6]
    assert main(["train", *map(str, fields), "--run", str(tmp_path / "run")]) == 0
    output = capsys.readouterr().err
    assert re.search(r"^epoch [123]/3: \d+ of \d+ steps, .* loss \d+\.\d+, .*images/s", output, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("seconds", "text"), [(42, "42 s"), (200, "3 min"), (7500, "2 h 05 min"), (76 * 3600, "3 d 4 h")]
)
def test_format_duration_shows_at_most_two_units(seconds, text):
    assert format_duration(seconds) == text
