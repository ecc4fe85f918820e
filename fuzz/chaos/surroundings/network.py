"""Network faults towards a client: late, lossy, silent or cut, by a proxy of its own.

The client comes back by number where its connection is lost, and its stream must read on as if
nothing had happened; proven by what the proxy kept back, or how many connections it cut.
"""

import random

import trio

from ...doubles.toxic_proxy import ToxicProxy
from ..fault_plan import Fault, FaultKind
from ..fault_run import FaultRunner
from ..faults import Void
from ..report.report import FaultOutcome

DELAY_S, LOSS = 0.15, 0.2
NETWORK = "network"


async def run_network(runner: FaultRunner, fault: Fault, outcome: FaultOutcome) -> None:
    """A stream over a network that has this fault for a while. Raises `Void`."""
    proxy = ToxicProxy(runner.served.port, random.Random(fault.number))
    async with trio.open_nursery() as nursery:
        port = await nursery.start(proxy.run)
        async with trio.open_nursery() as probe:
            await probe.start(runner.run_probe, fault, port)
            outcome.begin(trio.current_time())
            await spoil(proxy, fault.kind, fault.seconds)
            outcome.until_s = trio.current_time()
        nursery.cancel_scope.cancel("its stream has ended")
    assert outcome.at_s is not None
    runner.remember(fault.kind, outcome.at_s, NETWORK)
    if not proxy.late_bytes and not proxy.cuts:
        raise Void("nothing passed while the network was bad")
    outcome.proof = f"{proxy.late_bytes} bytes were late, {proxy.cuts} connections cut"


async def spoil(proxy: ToxicProxy, kind: FaultKind, seconds: float) -> None:
    """For so long; then it is a good network again."""
    match kind:
        case FaultKind.DELAY:
            proxy.delay_s = DELAY_S
        case FaultKind.LOSS:
            proxy.loss = LOSS
        case FaultKind.SILENCE:
            proxy.silence()
        case _:
            proxy.cut()
            return
    await trio.sleep(seconds)
    if kind is FaultKind.SILENCE:
        proxy.cut()
    proxy.pass_on()
