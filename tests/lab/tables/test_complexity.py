import pytest

from lambdanets_lab.tables import complexity


def test_fits_the_exponents_of_a_power_law():
    sizes = [{"b": b, "n": n, "h": h} for b in (1, 3) for n in (2, 8) for h in (2, 4)]
    measured = [(s, 7 * s["b"] * s["n"] ** 2 / s["h"]) for s in sizes]
    assert complexity.fit("bn/h", measured) == pytest.approx({"b": 1, "n": 2, "h": -1})


def test_dependence_on_a_size_outside_the_term_is_a_mismatch():
    sizes = [{"b": b, "n": n} for b in (1, 3) for n in (2, 8)]
    fitted = complexity.fit("b", [(s, s["b"] * s["n"]) for s in sizes])
    assert not complexity.matches_term("b", fitted)
