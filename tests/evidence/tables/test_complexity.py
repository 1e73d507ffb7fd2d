import pytest

from lambdanets.evidence.tables import complexity


def test_a_term_has_its_letters_and_sums_as_factors():
    assert complexity.factors("bnm(hk+d)") == {"b": 1, "n": 1, "m": 1, "(hk+d)": 1}
    assert complexity.factors("bnmkd/h") == {"b": 1, "n": 1, "m": 1, "k": 1, "d": 1, "h": -1}


def test_a_sum_of_products_has_its_value():
    assert complexity.value_of("(hk+d)", {"h": 2, "k": 3, "d": 5}) == 11


def test_exponents_of_a_known_power_law_are_found():
    sizes = [{"b": b, "n": n, "h": h} for b in (1, 3) for n in (2, 8) for h in (2, 4)]
    measured = [(s, 7 * s["b"] * s["n"] ** 2 / s["h"]) for s in sizes]
    assert complexity.fit("bn/h", measured) == pytest.approx({"b": 1, "n": 2, "h": -1})


def test_a_size_that_a_term_does_not_name_must_not_matter():
    sizes = [{"b": b, "n": n} for b in (1, 3) for n in (2, 8)]
    found = complexity.fit("b", [(s, s["b"] * s["n"]) for s in sizes])
    assert not complexity.as_printed("b", found)


@pytest.mark.parametrize(
    ("table", "row", "term"),
    [
        ("2", "attention", "bnm(hk+d)"),
        ("2", "relative attention", "bnm(hk+d)"),
        ("2", "linear attention", "bnkd"),
        ("2", "lambda layer", "bnmkd/h"),
        ("2", "lambda convolution", "bnrkd/h"),
        ("6", "multi-head", "bnmkd"),
        ("7", "u>1", "bnmkud/h"),
    ],
)
def test_operations_run_as_often_as_the_paper_says(table, row, term):
    assert complexity.as_printed(term, complexity.exponents(table, row, term))


def test_a_multi_head_layer_is_not_as_cheap_as_a_multi_query_one():
    assert not complexity.as_printed("bnmkd/h", complexity.exponents("6", "multi-head", "bnmkd/h"))
