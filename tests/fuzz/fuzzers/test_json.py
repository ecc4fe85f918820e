"""Bodies and events of wrong shapes are refused, and the fuzzer would notice if they were not."""

import pytest

from triolet.fuzz.fuzzers.json import FUZZER

from ..pressing import check_holds, check_notices


@pytest.mark.slow
def test_it_holds() -> None:
    check_holds(FUZZER)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FUZZER.faults)
def test_it_notices(fault: str) -> None:
    check_notices(FUZZER, fault)
