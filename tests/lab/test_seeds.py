import math

import pytest
from scipy.stats import ttest_1samp

from lambdanets_lab.seeds import confidence_interval, format_difference, paired_differences


def test_confidence_interval_is_that_of_scipy():
    differences = [0.02, 0.05, 0.01, 0.04]
    expected = ttest_1samp(differences, 0).confidence_interval(0.95)
    assert confidence_interval(differences) == pytest.approx((expected.low, expected.high))
    assert confidence_interval(differences[:1]) == (-math.inf, math.inf)


def test_only_seeds_that_both_have_are_paired():
    assert paired_differences({0: 0.5, 1: 0.7, 4: 0.9}, {4: 0.5, 0: 0.25, 2: 0.1}) == pytest.approx([0.25, 0.4])


def test_difference_is_formatted_with_its_interval():
    assert format_difference([1.0, 2.0, 3.0]) == "+2.00 (-0.48 to +4.48)"
    assert [format_difference([x], 1) for x in (-1.25, -0.04)] == ["-1.2", "+0.0"]
