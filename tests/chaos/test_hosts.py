"""Short form of `triolet chaos --hosts 3`: hosts join a head, are killed, cut off, and outlive it.

Nine cases: hosts join; strangers come to the door; an engine of one is killed; a request ends
whichever engine computes it, and is refused after two; a host is switched off; its link is cut for
2 s, and for 6 s; the head is killed, and no host computes on; and the next one has its streams.
"""

import pytest
import trio

from triolet.fuzz.chaos.command import show
from triolet.fuzz.chaos.network.host_campaign import run_hosts
from triolet.fuzz.chaos.network.host_plan import HostFault, HostFaultKind
from triolet.fuzz.chaos.network.namespaces import NoNamespaces
from triolet.fuzz.chaos.options import ChaosOptions

from ..end_to_end.server import DEADLINE_S

pytestmark = pytest.mark.slow

OPTIONS = ChaosOptions(hosts=3, patience=10.0)
KINDS = (
    HostFaultKind.STRANGERS,
    HostFaultKind.KILL_ENGINE,
    HostFaultKind.POISON,
    HostFaultKind.HOST_OFF,
    HostFaultKind.SHORT_CUT,
    HostFaultKind.CUT,
)


async def test_streams_outlast_what_happens_to_hosts_and_their_links() -> None:
    plan = [
        HostFault(number=number, kind=kind, host=2 + number % 2, token=20)
        for number, kind in enumerate(KINDS)
    ]
    with trio.fail_after(5 * DEADLINE_S):
        try:
            report = await run_hosts(OPTIONS, plan)
        except NoNamespaces as reason:
            pytest.skip(str(reason))
    show(report)
    assert report.all_violations() == []
    assert report.is_green()


async def test_streams_of_a_killed_root_go_on_by_number_once_hosts_have_joined_the_next() -> None:
    """Of a head that computes nothing itself: journals on its disk, weights in hosts' memory."""
    plan = [HostFault(number=0, kind=HostFaultKind.KILL_ROOT, host=2, token=20)]
    with trio.fail_after(5 * DEADLINE_S):
        try:
            report = await run_hosts(OPTIONS, plan, engines=0)
        except NoNamespaces as reason:
            pytest.skip(str(reason))
    show(report)
    assert report.all_violations() == []
    assert report.is_green()
