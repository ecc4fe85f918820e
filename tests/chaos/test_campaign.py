"""Short forms of `triolet chaos --seed N --faults 300`, over the real tree.

One fault of every kind with an executor whose steps take a known time, and deaths of engines and
workers with the real one, whose cache is so small that replays meet a full one.
"""

from xml.etree import ElementTree

import pytest
import trio

from triolet.fuzz.chaos.command import run_campaign, show
from triolet.fuzz.chaos.fault_plan import DECK, DISK, FaultKind
from triolet.fuzz.chaos.options import ChaosOptions

from ..end_to_end.server import DEADLINE_S

pytestmark = pytest.mark.slow

# What is judged here is what happens; how soon it does is the command's affair, on a quiet machine.
PATIENCE = 10.0
EVERY_KIND = ChaosOptions(seed=1, faults=len(DECK), patience=PATIENCE)
DEATHS = (
    FaultKind.KILL_WORKER,
    FaultKind.KILL_ENGINE,
    FaultKind.KILL_ALL,
    FaultKind.KILL_BOOT,
    FaultKind.CRASH_WORKER,
    FaultKind.POISON,
)
# Eight bystanders and a probe of up to 16 blocks each.
FEW_BLOCKS = 48
WITH_THE_MODEL = ChaosOptions(
    seed=2,
    faults=len(DEATHS),
    frontends=1,
    executor="native",
    kv_blocks=FEW_BLOCKS,
    only=DEATHS,
    patience=PATIENCE,
)
ON_DISK = ChaosOptions(seed=1, faults=len(DISK), only=tuple(sorted(DISK)), patience=PATIENCE)


@pytest.mark.parametrize(
    "options", [EVERY_KIND, WITH_THE_MODEL, ON_DISK], ids=["null", "native", "disk"]
)
async def test_one_fault_of_each_kind(options: ChaosOptions) -> None:
    with trio.fail_after(10 * DEADLINE_S):
        report = await run_campaign(options)
    show(report)
    assert report.all_violations() == []
    assert report.is_green()
    ElementTree.fromstring(report.picture())
    assert {each.kind for each in report.outcomes} == {*options.kinds(), FaultKind.KILL_ROOT}
