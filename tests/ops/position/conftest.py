import pytest

from lambdanets.ops.position import execution


@pytest.fixture(autouse=True)
def nothing_kept():
    """Tests that exchange tilings or limits must not meet what was made with others."""
    execution._PREPARED.clear()
    yield
    execution._PREPARED.clear()
