import pytest

from lambdanets.ops.position.execution import prepared_tables


@pytest.fixture(autouse=True)
def clear_prepared_tables():
    """Clear the cache, because some tests replace algorithms or limits."""
    prepared_tables.clear()
    yield
    prepared_tables.clear()
