"""Forms compile or are refused in bounded time, and the fuzzer would notice if they did not."""

import pytest

from triolet.fuzz.fuzzers.grammars import FUZZER

from ..pressing import check_holds, check_notices


@pytest.mark.slow
def test_it_holds() -> None:
    check_holds(FUZZER)


@pytest.mark.parametrize("fault", FUZZER.faults)
def test_it_notices(fault: str) -> None:
    check_notices(FUZZER, fault)
