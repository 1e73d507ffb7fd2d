"""Control characters are escaped in printed lines."""

import io

import pytest
from tqdm import tqdm

from lambdanets.terminal import echo, printable, text_table


@pytest.mark.parametrize("text", ["\x1b[31mred", "two\nlines\r", "\x9b2J and \x07", "\u202egpj.exe", "\u2028", "a\tb"])
def test_control_characters_are_escaped(text):
    assert printable(text) == text.encode("unicode_escape").decode()


@pytest.mark.parametrize("text", ["größe 23×23", "数字 — «ok»", "नमस्ते", "👩\u200d🔬", "no\u00a0break", ""])
def test_text_in_any_script_is_unchanged(text):
    assert printable(text) == text


def test_newlines_within_an_argument_are_escaped():
    stream = io.StringIO()
    echo("one\ntwo", 3, file=stream)
    assert stream.getvalue() == "one\\ntwo\n3\n"


def test_table_cells_are_escaped():
    lines = text_table([["name", "top-1"], ["a\nb\x1b[2J", "0.5"]]).split("\n")
    assert len(lines) == 2
    assert lines[1].split() == ["a\\nb\\x1b[2J", "0.5"]


def test_a_line_does_not_mix_with_a_progress_bar():
    stream = io.StringIO()
    with tqdm(total=2, file=stream) as bar:
        bar.update()
        echo("a line", file=stream)
    assert "\ra line\n" in stream.getvalue()
