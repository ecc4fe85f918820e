"""Homes go from frontend to frontend, and what a death on the way says of them."""

import socket

import pytest
import trio
import trio.testing

from triolet.engine.messages import Drain
from triolet.nurseries.processes.process import open_process
from triolet.runtime.messages import HostHome
from triolet.runtime.processes.child_process import ChildProcess
from triolet.runtime.processes.frontend_homes import FrontendHomes
from triolet.runtime.processes.homes.home_owners import HomeOwners
from triolet.runtime.processes.membership import FrontendDirectory
from triolet.transports.control.channel import ControlChannel

from ...nurseries.child_programs import HASTY, spec_of
from ..acting import fill


@pytest.mark.slow
@pytest.mark.parametrize("is_sent", [True, False])
async def test_no_host_has_died_of_a_home_that_it_was_not_sent(is_sent: bool) -> None:
    homes = FrontendHomes(HomeOwners(2), FrontendDirectory(), lambda _: None)
    homes.hold(0)
    assert homes.handle_given_up(0, [1], [0]) == (0, 1)
    for number in (1, 2):
        left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        async with open_process(spec_of("deaf"), ladder=HASTY) as process:
            with right, ControlChannel(left, sends=[Drain, HostHome]) as control:
                child = ChildProcess(process, control, lambda *_: None)
                if not is_sent:
                    await fill(child)
                async with trio.open_nursery() as nursery:
                    term = homes.begin(0, number)
                    nursery.start_soon(homes.ask, child, 0, term, 60.0)
                    await trio.testing.wait_all_tasks_blocked()
                    homes.handle_gone(1)
                    nursery.cancel_scope.cancel("it is gone")
    assert homes.owners.host(0) == (None if is_sent else 1)
    homes.close()
