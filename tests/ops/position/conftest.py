import pytest

from lambdanets.ops.position import choose
from lambdanets.ops.position.position_term import prepared_tables


def clear():
    prepared_tables.clear()
    choose.choose.cache_clear()


@pytest.fixture(autouse=True)
def clear_caches():
    """Clear tables and choices, because some tests replace algorithms, limits or libraries."""
    clear()
    yield
    clear()
