import pytest

from lambdanets.ops.position.execution import prepared_tables


@pytest.fixture(autouse=True)
def nothing_prepared():
    """Tests that exchange algorithms or limits must not meet what was prepared with others."""
    prepared_tables.clear()
    yield
    prepared_tables.clear()
