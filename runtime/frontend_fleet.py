"""All frontend processes of one server: supervised, fed with connections and memberships.

The shell over `FrontendDirectory` and `ConnectionBalancer`; a frontend that dies is restarted under
a new epoch. Its module is named by whoever serves, since this floor does not know HTTP. Must not
know requests or what travels on a connection.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs
import msgspec
import trio

from ..engine.errors import BootRefused
from ..engine.messages import Drain, FrontendAddress, FrontendMembership
from ..nurseries.background import start_background_task_soon
from ..nurseries.process import ProcessSpec
from ..nurseries.supervisor import RestartLimitExceeded, supervise
from ..transports.passed_fds import close_fds
from .child_life import ChildLife, ChildPlan, run_child_life
from .config import RuntimeSettings
from .connection_balancer import ConnectionBalancer
from .control_server import Answer, ControlCall
from .events import ChildFailed, ChildReady, OnEvent
from .foreign_calls import deliver
from .membership import FrontendDirectory
from .messages import (
    FRONTEND_TO_ROOT,
    ROOT_TO_FRONTEND,
    EngineMembership,
    ForeignCall,
    ForeignReply,
    FrontendInit,
    FrontendLoad,
    FrontendReady,
    PassConnection,
    RootCall,
    RootReply,
)

# A frontend's control socket holds some hundred messages; one that takes none for so long hangs,
# and the connection is better served by another.
PASS_TIMEOUT_S = 2.0
# Calls between frontends that wait for a control socket; pulled out of the air. Each may hold one
# response object.
RELAYS_MAX = 256


async def _no_answer(call: ControlCall) -> str:
    """Where nobody can be asked."""
    return "null"


@attrs.define(eq=False)
class FrontendFleet:
    """The frontends of one run: `count` processes of `module`.

    `settings_text` is for them alone; `engines` gives the newest snapshot, for INIT.
    """

    module: str
    count: int
    settings: RuntimeSettings
    settings_text: str
    run_id: str
    epochs: Iterator[int]
    engines: Callable[[], EngineMembership]
    on_membership: Callable[[FrontendMembership], None]
    on_event: OnEvent
    # What the root says to a question of an operator.
    answer: Answer = _no_answer
    pass_timeout_s: float = PASS_TIMEOUT_S
    directory: FrontendDirectory = attrs.field(factory=FrontendDirectory, init=False)
    balancer: ConnectionBalancer = attrs.field(factory=ConnectionBalancer, init=False)
    booting: dict[int, ChildLife] = attrs.field(factory=dict, init=False)
    lives: dict[int, ChildLife] = attrs.field(factory=dict, init=False)
    # Set and replaced whenever a frontend came, went, or reported its load.
    changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _draining: bool = attrs.field(default=False, init=False)
    _connections: int = attrs.field(default=0, init=False)
    _relays: int = attrs.field(default=0, init=False)
    _nursery: trio.Nursery | None = attrs.field(default=None, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `frontends`: keep every frontend up; never returns unless cancelled.

        Raises `RestartLimitExceeded` when one of them keeps dying, `BootRefused` when it cannot
        start at all.
        """
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for rank in range(self.count):
                start_background_task_soon(nursery, self._supervise, rank, name=f"frontend-{rank}")
            task_status.started()

    def publish_engines(self, membership: EngineMembership) -> None:
        """Tell every frontend which engines there are."""
        for life in self.lives.values():
            life.publish(membership)

    async def pass_connection(self, fd: int) -> None:
        """Give an accepted connection to the frontend with the fewest open streams.

        The descriptor stays the caller's. Waits while no frontend is up; one that is dead or hangs
        is passed by. What was sent to one that dies before it read it is lost: its client sees a
        reset, as if the frontend had died a moment later.
        """
        while True:
            rank = self.balancer.choose()
            if rank is None:
                await self.changed.wait()
                continue
            life = self.lives[rank]
            self._connections += 1
            try:
                await life.tell(PassConnection(self._connections), self.pass_timeout_s, [fd])
                return
            except trio.BrokenResourceError:
                if self.lives.get(rank) is life:
                    self.balancer.handle_gone(rank)  # dead; its pidfd is about to say so
            except trio.TooSlowError:
                if self.lives.get(rank) is life:
                    self.balancer.handle_not_taken(rank)

    async def drain(self) -> None:
        """Tell every frontend to accept nothing new, those that are yet to come included."""
        self._draining = True
        async with trio.open_nursery() as nursery:
            for life in self.lives.values():
                nursery.start_soon(
                    life.tell_if_it_listens, Drain(), self.pass_timeout_s, name="drain"
                )

    async def wait_drained(self) -> None:
        """Return when no connection is open any more."""
        while not self.balancer.is_idle():
            await self.changed.wait()

    async def wait_serving(self) -> None:
        """Return when some frontend can send requests to some engine."""
        while not self.balancer.can_serve():
            await self.changed.wait()

    async def _supervise(self, rank: int) -> None:
        try:
            await supervise(
                partial(self._live, rank),
                child=f"frontend {rank}",
                policy=self.settings.supervision.policy(random.Random()),
                hopeless=(BootRefused,),
            )
        except RestartLimitExceeded as error:
            if isinstance(error.__cause__, BootRefused):
                raise error.__cause__ from None
            self.on_event(ChildFailed(f"frontend {rank}", str(error.__cause__)))
            raise

    async def _live(self, rank: int, *, task_status: trio.TaskStatus[None]) -> None:
        name = f"frontend {rank}"
        epoch = next(self.epochs)
        started_s = trio.current_time()

        def ready(life: ChildLife, payload: bytes) -> None:
            address = msgspec.msgpack.decode(payload, type=FrontendReady)
            del self.booting[rank]
            self.lives[rank] = life
            self.balancer.handle_up(rank)
            life.publish(self.engines())
            self.on_membership(
                self.directory.handle_ready(
                    FrontendAddress(rank, epoch, address.input_endpoint, address.output_endpoint)
                )
            )
            self.on_event(ChildReady(name, epoch, trio.current_time() - started_s))
            self.notify()
            task_status.started()

        def gone(cause: str) -> None:
            self.booting.pop(rank, None)
            self.lives.pop(rank, None)
            self.balancer.handle_gone(rank)
            self.on_membership(self.directory.handle_gone(rank))
            self.notify()

        plan = ChildPlan(
            spec=ProcessSpec(name, self.module),
            role="frontend",
            epoch=epoch,
            sends=ROOT_TO_FRONTEND,
            receives=FRONTEND_TO_ROOT,
            boot_timeout_s=self.settings.engine.boot_timeout_s,
            ladder=self.settings.times.ladder,
            on_spawned=partial(self.booting.__setitem__, rank),
            on_ready=ready,
            on_gone=gone,
            on_message=partial(self._handle_message, rank),
            on_event=self.on_event,
        )
        init = FrontendInit(
            run_id=self.run_id,
            rank=rank,
            epoch=epoch,
            settings=self.settings_text,
            engines=self.engines(),
            draining=self._draining,
        )
        await run_child_life(plan, msgspec.msgpack.encode(init))

    def _handle_message(self, rank: int, message: object, fds: Sequence[int]) -> None:
        close_fds(fds)
        match message:
            case FrontendLoad():
                self.balancer.handle_load(rank, message)
                self.notify()
            case ForeignCall() | ForeignReply():
                self._relay(message)
            case RootCall():
                self._answer(rank, message)
            case _:
                raise AssertionError(f"the codec let {type(message).__name__} through")

    def _relay(self, message: ForeignCall | ForeignReply) -> None:
        """Pass on what one frontend says to another; dropped above a bound: callers have deadlines.

        A task each, so that one that hangs delays nobody else.
        """
        delivery = deliver(message, self.directory.epochs())
        if delivery is None or self._nursery is None or self._relays >= RELAYS_MAX:
            return
        self._relays += 1
        life = self.lives[delivery.frontend]
        self._nursery.start_soon(self._tell, life, delivery.message, name="foreign-call")

    def _answer(self, rank: int, call: RootCall) -> None:
        """Answer an operator's question; bounded as relays are."""
        if self._nursery is None or self._relays >= RELAYS_MAX:
            return
        self._relays += 1
        self._nursery.start_soon(self._ask_and_tell, self.lives[rank], call, name="root-call")

    async def _ask_and_tell(self, life: ChildLife, call: RootCall) -> None:
        try:
            text = await self.answer(call.call)
            await life.tell_if_it_listens(RootReply(call.call_id, text), self.pass_timeout_s)
        finally:
            self._relays -= 1

    async def _tell(self, life: ChildLife, message: object) -> None:
        try:
            await life.tell_if_it_listens(message, self.pass_timeout_s)
        finally:
            self._relays -= 1

    def notify(self) -> None:
        """Wake whoever waits for `changed`."""
        self.changed.set()
        self.changed = trio.Event()
