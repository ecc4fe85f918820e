"""Waiting ends when the condition holds, or when its time is over."""

import pytest
import trio
from trio.testing import MockClock

from triolet.fuzz.chaos.waits import NotInTime, wait_until


async def test_it_tells_how_long_it_took(autojump_clock: MockClock) -> None:
    async def is_late() -> bool:
        return trio.current_time() >= begun_s + 3.0

    begun_s = trio.current_time()
    assert 3.0 <= await wait_until(is_late, "it is late", seconds=10.0) < 3.1
    assert await wait_until(lambda: True, "at once", seconds=1.0) == 0.0


async def test_it_says_what_was_missed(autojump_clock: MockClock) -> None:
    with pytest.raises(NotInTime, match="within 2 s it did not come to pass: the moon"):
        await wait_until(lambda: False, "the moon", seconds=2.0)


async def test_a_machine_that_stood_still_has_not_missed_it(mock_clock: MockClock) -> None:
    looks = 0

    def held() -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            mock_clock.jump(1000)
        return looks > 1

    assert await wait_until(held, "it stands still once", seconds=10.0) == 1000
