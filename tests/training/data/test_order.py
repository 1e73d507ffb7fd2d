import numpy as np
import pytest

from lambdanets.training.data.order import WINDOW, permuted, permuted_in_windows

GROUPS = [5, 0, 7, 1, 4, 4, 9, 2, 3, 6, 8, 1, 5, 2, 2, 2, 7, 3, 5, 4]


def test_every_image_comes_once_an_epoch() -> None:
    assert sorted(permuted(30, 0, 0)) == list(range(30))
    assert sorted(permuted_in_windows(GROUPS, 0, 0)) == list(range(sum(GROUPS)))


def test_the_order_is_the_same_for_a_seed_and_epoch_and_other_for_another() -> None:
    for order in (lambda *place: permuted(50, *place), lambda *place: permuted_in_windows(GROUPS, *place)):
        assert np.array_equal(order(3, 2), order(3, 2))
        assert not np.array_equal(order(3, 2), order(3, 1))
        assert not np.array_equal(order(3, 2), order(2, 2))
        assert not np.array_equal(order(1, 2), order(2, 1))


def test_no_more_shards_than_a_window_holds_are_read_at_a_time() -> None:
    groups = [50] * 30
    order = permuted_in_windows(groups, 0, 4) // 50
    windows = [set(order[first : first + 50 * WINDOW]) for first in range(0, len(order), 50 * WINDOW)]
    assert [len(window) for window in windows] == [WINDOW, WINDOW, WINDOW, 30 - 3 * WINDOW]
    assert set.union(*windows) == set(range(30))


def test_the_images_of_a_window_are_shuffled_among_its_shards() -> None:
    order = permuted_in_windows([50] * WINDOW, 0, 0) // 50
    assert all(len(set(order[first : first + 50])) > WINDOW // 2 for first in range(0, len(order), 50))


@pytest.mark.parametrize("groups", [[], [3], [0, 0]])
def test_few_or_empty_shards_make_an_order_too(groups: list[int]) -> None:
    assert sorted(permuted_in_windows(groups, 0, 0)) == list(range(sum(groups)))
