"""Scenarios as text: commands in, the whole trace out (the form of etcd/raft's testdata).

A folder is a suite; the driver of its commands is in `driver.py`. To write the traces anew after an
intended change, and then read the difference: `TRIOLET_REWRITE_SCENARIOS=1 pytest tests/scenarios`.
"""

import os
import pathlib
from collections.abc import Callable

import pytest

from .connection_balancer.driver import ConnectionBalancerDriver
from .connection_slots.driver import ConnectionSlotsDriver
from .engine_core.driver import EngineCoreDriver
from .hang_watch.driver import HangWatchDriver
from .ledger.driver import LedgerDriver
from .place.driver import PlaceDriver
from .quarantine.driver import QuarantineDriver
from .suite import Driver, parse, render

HERE = pathlib.Path(__file__).parent
REWRITE = "TRIOLET_REWRITE_SCENARIOS"
DRIVERS: dict[str, Callable[[], Driver]] = {
    "connection_balancer": ConnectionBalancerDriver,
    "connection_slots": ConnectionSlotsDriver,
    "engine_core": EngineCoreDriver,
    "hang_watch": HangWatchDriver,
    "ledger": LedgerDriver,
    "place": PlaceDriver,
    "quarantine": QuarantineDriver,
}


@pytest.mark.parametrize(
    "path", sorted(HERE.glob("*/*.txt")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_scenario(path: pathlib.Path) -> None:
    text = path.read_text()
    blocks, driver = parse(text), DRIVERS[path.parent.name]()
    traces = [driver.run(block) if block.commands else [] for block in blocks]
    if os.environ.get(REWRITE):
        for block, trace in zip(blocks, traces, strict=True):
            block.trace = trace
        path.write_text(render(blocks))
        return
    for block, trace in zip(blocks, traces, strict=True):
        assert trace == block.trace, f"after {block.commands}"
    assert render(blocks) == text, "not in the form that rewriting gives"
