"""Two frontends whose machines' clocks have nothing in common, before one engine: who is first."""

from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from triolet.engine.config import EngineSettings
from triolet.engine.control_messages import EngineReady
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.messages import FRONTEND_TO_ENGINE, AddRequest, RequestOutput
from triolet.engine.process.server import EngineServer
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import StepResult, WorkerReady
from triolet.runtime.fleet.membership import EngineDirectory
from triolet.runtime.frontend.core_client import CoreClient
from triolet.runtime.frontend.ledger import Ledger
from triolet.runtime.frontend.load_balancer import LeastLoaded
from triolet.transports.codec import Codec
from triolet.transports.links.channel import Peer, PeerUp, Received

ENGINE = Peer("engine", 0, 9)
WORKER = WorkerReady(kv_blocks=16, max_model_len=64, vocab_size=100, numerics_id="n", bitwise=True)
READY = EngineReady(
    kv_blocks=16, block_tokens=16, max_model_len=64, max_num_seqs=1,
    vocab_size=100, numerics_id="n", bitwise=True, settings_digest="d",
)  # fmt: skip
HOUR_S = 3600.0


async def no_tree() -> str:
    return "{}"


@attrs.define(eq=False)
class Wire:
    """Both ends at once: what one sends the other has, by way of its bytes."""

    me: Peer
    server: EngineServer | None = None
    codec: Codec = attrs.field(factory=lambda: Codec(*FRONTEND_TO_ENGINE))

    def send(self, peer: Peer, message: object) -> None:
        if self.server is not None:
            read = self.codec.decode(self.codec.encode(message))
            self.server.handle_event(Received(self.me, read))

    def allow(self, keys: object) -> None:
        pass


@attrs.define(eq=False)
class Sink:
    request_id: str
    token_ids: list[int] = attrs.field(factory=list)

    def put_token(self) -> None:
        pass

    def put(self, output: RequestOutput) -> None:
        pass

    def fail(self, error: Exception) -> None:
        raise error


@attrs.define(eq=False)
class Machine:
    """Frontend of one machine, whose clock is so many seconds ahead of ours."""

    rank: int
    ahead_s: float
    wire: Wire = attrs.field(init=False)
    client: CoreClient = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.wire = Wire(Peer("frontend", self.rank, 1))
        rest = Ledger(term=1), LeastLoaded(rank=self.rank)
        wire: Any = self.wire
        self.client = CoreClient(wire, *rest, clock_ns=self.clock_ns)

    def clock_ns(self) -> int:
        return int((trio.current_time() + self.ahead_s) * 1e9)

    def submit(self, name: str) -> None:
        request = AddRequest(
            request_id=name,
            attempt=0,
            prompt_token_ids=[1, 2, 3],
            sampling=SamplingParams(seed=1, max_tokens=1),
        )
        self.client.submit([(request, Sink(name))])

    def meet(self, server: EngineServer, engines: EngineDirectory) -> None:
        """The engine is ready, and its link comes up."""
        self.client.apply_membership(engines.snapshot())
        server.handle_event(PeerUp(self.wire.me, 1))
        self.wire.server = server
        self.client.handle_event(PeerUp(ENGINE, 1))


def run_all(core: EngineCore) -> list[str]:
    """Requests in the order in which they end, each after its first token."""
    ended: list[str] = []
    while (step := core.schedule(0.0)) is not None:
        rows = [row for row, samples in zip(step.rows, step.samples, strict=True) if samples]
        outputs = core.finish_step(StepResult(step.number, rows, [7] * len(rows)), 0.0)
        for message in outputs.values():
            ended += [output.request_id for output in message.outputs]
    return ended


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S])
async def test_an_engine_serves_in_the_order_of_admission_whatever_the_clocks_say(
    mock_clock: MockClock, ahead_s: float
) -> None:
    mock_clock.jump(2 * HOUR_S)
    here, there = Machine(0, 0.0), Machine(1, ahead_s)
    engines = EngineDirectory()
    engines.handle_starting(ENGINE.rank, ENGINE.epoch)
    for machine in (here, there):
        machine.client.apply_membership(engines.handle_ready(ENGINE.rank, READY))
    # They wait at their frontends for the link, and those that come then wait at the engine.
    for name, machine in (("1", here), ("2", there), ("3", here), ("4", there)):
        machine.submit(name)
        mock_clock.jump(1.0)
    core = EngineCore(EngineSettings(model="m", max_num_seqs=1), WORKER)
    nothing_back: Any = Wire(ENGINE)
    server = EngineServer(core, nothing_back, no_tree)
    for machine in (there, here):
        machine.meet(server, engines)
    for name, machine in (("5", there), ("6", here), ("7", there)):
        machine.submit(name)
        mock_clock.jump(1.0)
    assert run_all(core) == ["1", "2", "3", "4", "5", "6", "7"]
