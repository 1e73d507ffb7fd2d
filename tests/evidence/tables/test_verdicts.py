import csv
import io
import json
import re
from dataclasses import replace

import pytest

from lambdanets.evidence.tables import verdicts
from lambdanets.evidence.tables.printed import Printed, figures_of, printed
from lambdanets.evidence.tables.rendering import as_csv, as_json, as_markdown, as_text
from lambdanets.evidence.tables.texts import PARAGRAPHS, TITLES
from lambdanets.evidence.tables.verdicts import LISTED, MATCH, compare, summary

pytestmark = pytest.mark.xdist_group("figures")  # counted once, for both


@pytest.fixture(scope="module")
def lines():
    return compare(printed())


def test_rounding_is_to_the_last_printed_digit():
    figure = Printed("4", "r", "memory", 120, "GB", 10)
    assert figure.agrees(122.8)
    assert not figure.agrees(125.1)
    assert figure.text() == "120"
    assert Printed("3", "r", "params", 15, "M", 0.1).text() == "15.0"


def test_words_cannot_be_compared_with_a_number():
    with pytest.raises(ValueError, match="value must be a number to be compared with 1, got 'OOM'"):
        Printed("4", "r", "throughput", "OOM", "ex/s", None).agrees(1)


def test_69_figures_are_countable_and_57_of_them_match(lines):
    countable = [line for line in lines if line.countable]
    assert len(countable) == 69
    assert sum(line.verdict == MATCH for line in countable) == 57
    assert summary(lines).startswith("57 of 69 countable numbers match; 12 not reproducible (see notes)")


def test_what_is_listed_as_unreproducible_is_just_what_does_not_match(lines):
    listed = {line.printed for line in lines if line.verdict == LISTED}
    assert listed == {figure for figure in printed() if figure.unreproducible}


def test_no_figure_differs_without_being_listed(lines):
    assert [line for line in lines if line.verdict == verdicts.DIFFERS] == []


@pytest.mark.parametrize("table", ["9", "10", "16", "17"])
def test_flops_come_out_as_printed(lines, table):
    some = [line for line in lines if line.printed.table == table and line.printed.column == "FLOPs"]
    assert some
    assert all(line.printed.agrees(line.ours) or line.printed.row == "MobileNet-v2" for line in some)


def test_a_figure_that_comes_out_without_unused_table_entries_says_so(lines):
    (line,) = [line for line in lines if line.printed.row == "k=32,h=8,u=1" and line.printed.column == "params"]
    assert (line.verdict, line.ours) == (MATCH, 15.7414)
    assert line.note == "without the table entries of offsets that no map of 224 pixels has; with them 15.764"


def test_networks_of_others_are_counted_beside_and_not_among_the_countable(lines):
    some = [line for line in lines if line.verdict == verdicts.ANOTHER]
    assert [line.printed.row[:4] for line in some] == ["conv", "conv", "loca", "loca", "loca"]
    assert all(line.ours and line.note and not line.countable for line in some)


def test_table_19_is_read_off_the_models(lines):
    some = [line for line in lines if line.printed.table == "19"]
    assert len(some) == 14
    assert all(line.verdict == MATCH and line.ours == line.printed.value for line in some)


def test_a_figure_made_wrong_differs():
    (figure,) = [f for f in figures_of(["3"]) if f.row == "lambda layer" and f.column == "params"]
    (line,) = compare([replace(figure, value=15.1)])
    assert line.verdict == verdicts.DIFFERS
    assert summary([line]) == "0 of 1 countable numbers match; 0 not reproducible (see notes); 1 differs"


def test_accuracies_are_marked_as_not_reproduced(lines):
    accuracies = [line for line in lines if "top-1" in line.printed.column or line.printed.column.startswith("AP")]
    assert len(accuracies) > 100
    assert all(line.ours is None for line in accuracies)
    assert {line.verdict for line in accuracies} == {verdicts.QUOTED}


def test_every_table_has_a_title_and_a_paragraph():
    assert set(TITLES) == set(PARAGRAPHS) == {figure.table for figure in printed()}


def test_csv_and_json_have_the_same_figures(lines):
    from_json = json.loads(as_json(lines))["figures"]
    from_csv = list(csv.DictReader(io.StringIO(as_csv(lines))))
    assert len(from_csv) == len(lines)
    as_words = [{name: "" if value is None else str(value) for name, value in row.items()} for row in from_json]
    assert as_words == from_csv


def test_markdown_and_terminal_have_every_row_and_number(lines):
    markdown, text = as_markdown(lines), as_text(lines)
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table_of(markdown, "Table 12.")}) == 1
    for line in lines:
        cells = [line.printed.row, line.printed.text(), *([f"{line.ours:.5g}"] if type(line.ours) is float else [])]
        row = next(row for row in table_of(markdown, line.printed.table) if row.startswith(f"| {line.printed.row} |"))
        assert all(cell in row for cell in cells)
        assert all(cell in text for cell in cells)


def table_of(markdown, name):
    heading = name if name.startswith("Table") else f"Table {name}." if name.isdigit() else TITLES[name]
    section = markdown.split(f"## {heading}")[1].split("\n## ")[0]
    return [row for row in section.splitlines() if row.startswith("|")]


def test_what_cannot_be_had_has_its_reason_below_the_table(lines):
    markdown = as_markdown([line for line in lines if line.printed.table == "12"])
    assert "| C-C-L-L | 15.4 | 15.560 | no [1] |" in markdown
    assert "- [1] not reproducible: contradicts the other rows" in markdown
