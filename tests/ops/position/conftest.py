import pytest

from lambdanets.ops.position.execution import prepared_tables


@pytest.fixture(autouse=True)
def clear_prepared_tables():
    """Tests that replace algorithms or limits must not reuse tables prepared with others."""
    prepared_tables.clear()
    yield
    prepared_tables.clear()
