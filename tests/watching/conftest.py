"""What every test of watching leaves behind: nothing."""

from collections.abc import Iterator

import pytest

from tests.interrupts import left_behind


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail a test after which hooks, functions or users of them are not as they were."""
    yield
    assert left_behind() == []
