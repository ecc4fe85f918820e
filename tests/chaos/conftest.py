"""What every test that kills leaves behind in the test process itself: nothing."""

from collections.abc import Iterator

import pytest

from ..leaks import check_no_leaks


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    with check_no_leaks():
        yield
