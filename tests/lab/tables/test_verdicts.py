import json

import pytest

from lambdanets_lab.tables.paper import PaperNumber, paper_numbers
from lambdanets_lab.tables.rendering import to_json
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


def test_json_has_all_numbers(comparisons):
    numbers = json.loads(to_json(comparisons))["numbers"]
    assert [(n["row"], n["paper"], n["ours"]) for n in numbers] == [
        (c.paper.row, c.paper.value, c.ours) for c in comparisons
    ]
