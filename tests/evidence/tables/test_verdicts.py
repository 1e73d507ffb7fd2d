import csv
import io
import json
import re
from dataclasses import replace

import pytest

from lambdanets.evidence.tables import verdicts
from lambdanets.evidence.tables.descriptions import PARAGRAPHS, TITLES
from lambdanets.evidence.tables.paper import PaperNumber, paper_numbers, select_numbers
from lambdanets.evidence.tables.rendering import to_csv, to_json, to_markdown, to_text
from lambdanets.evidence.tables.verdicts import MATCH, NOT_REPRODUCIBLE, compare, summary

pytestmark = pytest.mark.xdist_group("figures")  # counted once, for both


@pytest.fixture(scope="module")
def lines():
    return compare(paper_numbers())


def test_values_are_rounded_to_the_papers_digits():
    figure = PaperNumber("4", "r", "memory", 120, "GB", 10)
    assert figure.matches(122.8)
    assert not figure.matches(125.1)
    assert figure.text() == "120"
    assert PaperNumber("3", "r", "params", 15, "M", 0.1).text() == "15.0"


def test_text_cannot_be_compared_with_a_number():
    with pytest.raises(ValueError, match="value must be a number to be compared with 1, got 'OOM'"):
        PaperNumber("4", "r", "throughput", "OOM", "ex/s", None).matches(1)


def test_57_of_69_countable_numbers_match(lines):
    countable = [line for line in lines if line.countable]
    assert len(countable) == 69
    assert sum(line.verdict == MATCH for line in countable) == 57
    assert summary(lines).startswith("57 of 69 countable numbers match; 12 not reproducible (see notes)")


def test_all_numbers_listed_as_unreproducible_mismatch(lines):
    listed = {line.paper for line in lines if line.verdict == NOT_REPRODUCIBLE}
    assert listed == {number for number in paper_numbers() if number.unreproducible}


def test_all_mismatches_are_listed_as_unreproducible(lines):
    assert [line for line in lines if line.verdict == verdicts.DIFFERS] == []


@pytest.mark.parametrize("table", ["9", "10", "16", "17"])
def test_flops_match_the_paper(lines, table):
    flops = [line for line in lines if line.paper.table == table and line.paper.column == "FLOPs"]
    assert flops
    assert all(line.paper.matches(line.ours) or line.paper.row == "MobileNet-v2" for line in flops)


def test_note_explains_uncounted_table_entries(lines):
    (line,) = [line for line in lines if line.paper.row == "k=32,h=8,u=1" and line.paper.column == "params"]
    assert (line.verdict, line.ours) == (MATCH, 15.7414)
    assert line.note == "without table entries that no 224-pixel image uses; with them 15.764"


def test_networks_of_other_papers_are_not_counted(lines):
    other_networks = [line for line in lines if line.verdict == verdicts.OTHER_NETWORK]
    assert [line.paper.row[:4] for line in other_networks] == ["conv", "conv", "loca", "loca", "loca"]
    assert all(line.ours and line.note and not line.countable for line in other_networks)


def test_table_19_is_computed_from_the_models(lines):
    table_19 = [line for line in lines if line.paper.table == "19"]
    assert len(table_19) == 14
    assert all(line.verdict == MATCH and line.ours == line.paper.value for line in table_19)


def test_wrong_number_differs():
    (figure,) = [f for f in select_numbers(["3"]) if f.row == "lambda layer" and f.column == "params"]
    (line,) = compare([replace(figure, value=15.1)])
    assert line.verdict == verdicts.DIFFERS
    assert summary([line]) == "0 of 1 countable numbers match; 0 not reproducible (see notes); 1 differs"


def test_accuracies_are_marked_as_not_reproduced(lines):
    accuracies = [line for line in lines if "top-1" in line.paper.column or line.paper.column.startswith("AP")]
    assert len(accuracies) > 100
    assert all(line.ours is None for line in accuracies)
    assert {line.verdict for line in accuracies} == {verdicts.NOT_REPRODUCED}


def test_every_table_has_a_title_and_a_paragraph():
    assert set(TITLES) == set(PARAGRAPHS) == {number.table for number in paper_numbers()}


def test_csv_and_json_have_the_same_numbers(lines):
    from_json = json.loads(to_json(lines))["numbers"]
    from_csv = list(csv.DictReader(io.StringIO(to_csv(lines))))
    assert len(from_csv) == len(lines)
    as_text_rows = [{name: "" if value is None else str(value) for name, value in row.items()} for row in from_json]
    assert as_text_rows == from_csv


def test_markdown_and_terminal_have_every_row_and_number(lines):
    markdown, text = to_markdown(lines), to_text(lines)
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table_of(markdown, "Table 12.")}) == 1
    for line in lines:
        cells = [line.paper.row, line.paper.text(), *([f"{line.ours:.5g}"] if type(line.ours) is float else [])]
        row = next(row for row in table_of(markdown, line.paper.table) if row.startswith(f"| {line.paper.row} |"))
        assert all(cell in row for cell in cells)
        assert all(cell in text for cell in cells)


def table_of(markdown, name):
    heading = name if name.startswith("Table") else f"Table {name}." if name.isdigit() else TITLES[name]
    section = markdown.split(f"## {heading}")[1].split("\n## ")[0]
    return [row for row in section.splitlines() if row.startswith("|")]


def test_unreproducible_numbers_have_a_note_with_the_reason(lines):
    markdown = to_markdown([line for line in lines if line.paper.table == "12"])
    assert "| C-C-L-L | 15.4 | 15.560 | no [1] |" in markdown
    assert "- [1] not reproducible: contradicts the other rows" in markdown
