"""Whatever becomes of requests, every block comes back; and what did not would be noticed."""

from collections import Counter
from typing import Any

import attrs
import pytest

from triolet.engine.messages import EngineStatistics
from triolet.fuzz.fuzzers.kv_accounting import WAYS, Accounts, account

RIGHT = EngineStatistics(
    kv_blocks=4,
    kv_blocks_free=4,
    requests_added=5,
    requests_finished=2,
    requests_aborted=3,
    aborts_after=[1, 1, 1],
)


@pytest.mark.slow
async def test_every_block_is_free_whatever_the_requests_came_to() -> None:
    accounts = await account(160, seed=1)
    accounts.judge()
    assert accounts.ended.keys() >= WAYS.keys(), "each way was taken"
    assert accounts.statistics.preemptions
    assert accounts.statistics.prefix_hits
    assert accounts.statistics.requests_aborted
    assert any("free" in line for line in accounts.lines())


def test_what_is_right_is_judged_so() -> None:
    Accounts(Counter(), RIGHT, 0).judge()


@pytest.mark.parametrize(
    "wrong",
    [
        {"kv_blocks_free": 3},
        {"running": 1},
        {"requests_aborted": 2},
        {"aborts_after": [1, 1, 0]},
        {"aborts_after": [1, 1, 0, 1]},
    ],
    ids=str,
)
def test_what_is_not_accounted_for_is_noticed(wrong: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        Accounts(Counter(), attrs.evolve(RIGHT, **wrong), 0).judge()


def test_a_reference_that_is_left_is_noticed() -> None:
    with pytest.raises(AssertionError, match="referred"):
        Accounts(Counter(), RIGHT, 1).judge()
