"""Progress: one line on a terminal, otherwise a line every 30 seconds, and nothing for fast loops."""

import re
import time
from dataclasses import replace

import pytest

from lambdanets import progress
from lambdanets.progress import Progress, track
from lambdanets.training import callbacks, run


@pytest.fixture
def frequent_lines(monkeypatch):
    """Print a line after each item instead of every 30 seconds."""
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0.001)


def test_fast_loops_print_nothing(capsys):
    assert list(track([1, 2, 3], "counting", 3, "figures")) == [1, 2, 3]
    assert capsys.readouterr() == ("", "")


def test_lines_show_count_speed_remaining_time_and_a_note(frequent_lines, capsys):
    with Progress("table 4", 1000, "images", initial=300) as bar:
        bar.note("resnet50, warming up")
        time.sleep(0.01)
        bar.update(500)
    output = capsys.readouterr().err
    pattern = r"^table 4: 800 of 1000 images, [\d.]+ images/s, [\d:]+ left, resnet50, warming up$"
    assert re.search(pattern, output, flags=re.MULTILINE), output


def test_lines_of_a_loop_within_another_do_not_move_the_cursor(frequent_lines, capsys):
    for _ in track([1], "predicting", 1, "images"):
        list(track(map(time.sleep, [0.01, 0.01]), "detecting", 2, "tiles"))
    lines = capsys.readouterr().err.splitlines()
    assert {line.split(":")[0] for line in lines} == {"predicting", "detecting"}


def test_the_speed_of_a_slow_loop_is_in_seconds(frequent_lines, capsys):
    with Progress("slides", 2, "images") as bar:
        bar.start_t = bar.last_print_t = bar.start_t - 60
        bar.update()
    assert re.search(r"images, +\d+\.\d\d s/images, ", capsys.readouterr().err)


def test_a_terminal_shows_one_line_that_changes(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with Progress("shards", 10, "images") as line:
        time.sleep(0.3)
        line.update(5)
        line.note("00000.tar")
    output = capsys.readouterr().err
    assert re.search(r"\rshards: 5 of 10 images, .* left", output)
    assert re.search(r"\rshards: 5 of 10 images, .* left, 00000.tar", output)
    assert "\n" not in output


def test_training_prints_epoch_step_loss_and_speed(frequent_lines, quick, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(callbacks, "STEPS_PER_ROW", 1)
    run.start(replace(quick, epochs=1), tmp_path / "run")
    output = capsys.readouterr().err
    assert re.search(r"^epoch 1/1: \d+ of \d+ steps, .* loss \d+\.\d+, .*images/s", output, flags=re.MULTILINE)
