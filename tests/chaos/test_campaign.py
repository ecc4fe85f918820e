"""One fault of every kind over the real tree, and the root's death: the short form of the command.

`triolet chaos --seed N --faults 300` is the long one.
"""

import pytest
import trio

from triolet.fuzz.chaos.campaign import run_campaign, show
from triolet.fuzz.chaos.fault_plan import DECK, FaultKind
from triolet.fuzz.chaos.options import ChaosOptions

from ..end_to_end.server import DEADLINE_S

pytestmark = [pytest.mark.chaos, pytest.mark.slow]

# What is judged here is what happens; how soon it does is the command's affair, on a quiet machine.
OPTIONS = ChaosOptions(seed=1, faults=len(DECK), patience=10.0)


async def test_one_fault_of_every_kind() -> None:
    with trio.fail_after(10 * DEADLINE_S):
        report = await run_campaign(OPTIONS)
    show(report)
    assert report.all_violations() == []
    assert report.is_green()
    assert {outcome.kind for outcome in report.outcomes} == set(FaultKind)
