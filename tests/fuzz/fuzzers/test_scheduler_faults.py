"""Each planted fault is a core that starts, and breaks its rule only when it is pressed."""

import pytest

from triolet.fuzz.fuzzers.scheduler import check
from triolet.fuzz.fuzzers.scheduler_events import Run, Sizes
from triolet.fuzz.fuzzers.scheduler_faults import FAULTS


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_unpressed_it_is_like_any_other(fault: str) -> None:
    reached = check([Sizes(), Run(4)], FAULTS[fault])
    assert not +reached
