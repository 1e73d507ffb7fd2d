import pytest

from lambdanets_lab.tables import complexity


def test_fits_the_exponents_of_a_power_law():
    sizes = [{"b": b, "n": n, "h": h} for b in (1, 3) for n in (2, 8) for h in (2, 4)]
    fitted = complexity.fit([(s, 7 * s["b"] * s["n"] ** 2 / s["h"]) for s in sizes])
    assert fitted == pytest.approx({"b": 1, "n": 2, "h": -1})
    assert not complexity.matches_term("b/h", fitted)
