import csv
import io
import json
import re
from dataclasses import replace

import pytest

from lambdanets_lab.tables import verdicts
from lambdanets_lab.tables.descriptions import PARAGRAPHS, TITLES
from lambdanets_lab.tables.paper import PaperNumber, paper_numbers, select_numbers
from lambdanets_lab.tables.rendering import to_csv, to_json, to_markdown, to_text
from lambdanets_lab.tables.verdicts import MATCH, NOT_REPRODUCIBLE, compare, summary

pytestmark = pytest.mark.xdist_group("figures")  # one worker counts the models once for both files


@pytest.fixture(scope="module")
def comparisons():
    return compare(paper_numbers())


def test_values_are_rounded_to_the_papers_digits():
    number = PaperNumber("4", "r", "memory", 120, "GB", 10)
    assert number.matches(122.8)
    assert not number.matches(125.1)
    assert number.text() == "120"
    assert PaperNumber("3", "r", "params", 15, "M", 0.1).text() == "15.0"


def test_57_of_69_countable_numbers_match(comparisons):
    countable = [c for c in comparisons if c.countable]
    assert len(countable) == 69
    assert sum(c.verdict == MATCH for c in countable) == 57
    assert summary(comparisons).startswith("57 of 69 countable numbers match; 12 not reproducible (see notes)")


def test_all_numbers_listed_as_unreproducible_mismatch(comparisons):
    listed = {c.paper for c in comparisons if c.verdict == NOT_REPRODUCIBLE}
    assert listed == {number for number in paper_numbers() if number.unreproducible}


def test_all_mismatches_are_listed_as_unreproducible(comparisons):
    assert [c for c in comparisons if c.verdict == verdicts.DIFFERS] == []


def test_note_explains_uncounted_table_entries(comparisons):
    (comparison,) = [c for c in comparisons if c.paper.row == "k=32,h=8,u=1" and c.paper.column == "params"]
    assert (comparison.verdict, comparison.ours) == (MATCH, 15.7414)
    assert comparison.note == "without table entries that no 224-pixel image uses; with them 15.764"


def test_table_19_is_computed_from_the_models(comparisons):
    table_19 = [c for c in comparisons if c.paper.table == "19"]
    assert len(table_19) == 14
    assert all(c.verdict == MATCH and c.ours == c.paper.value for c in table_19)


def test_wrong_number_differs():
    (number,) = [n for n in select_numbers(["3"]) if n.row == "lambda layer" and n.column == "params"]
    (comparison,) = compare([replace(number, value=15.1)])
    assert comparison.verdict == verdicts.DIFFERS
    assert summary([comparison]) == "0 of 1 countable numbers match; 0 not reproducible (see notes); 1 differs"


def test_every_table_has_a_title_and_a_paragraph():
    assert set(TITLES) == set(PARAGRAPHS) == {number.table for number in paper_numbers()}


def test_csv_and_json_have_the_same_numbers(comparisons):
    from_json = json.loads(to_json(comparisons))["numbers"]
    from_csv = list(csv.DictReader(io.StringIO(to_csv(comparisons))))
    assert len(from_csv) == len(comparisons)
    json_rows_as_text = [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in from_json
    ]
    assert json_rows_as_text == from_csv


def test_markdown_and_terminal_have_every_row_and_number(comparisons):
    markdown, text = to_markdown(comparisons), to_text(comparisons)
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table_rows(markdown, "Table 12.")}) == 1
    for comparison in comparisons:
        paper, ours = comparison.paper, comparison.ours
        cells = [paper.row, paper.text(), *([f"{ours:.5g}"] if type(ours) is float else [])]
        row = next(row for row in table_rows(markdown, paper.table) if row.startswith(f"| {paper.row} |"))
        assert all(cell in row for cell in cells)
        assert all(cell in text for cell in cells)


def table_rows(markdown, name):
    heading = name if name.startswith("Table") else f"Table {name}." if name.isdigit() else TITLES[name]
    section = markdown.split(f"## {heading}")[1].split("\n## ")[0]
    return [row for row in section.splitlines() if row.startswith("|")]
