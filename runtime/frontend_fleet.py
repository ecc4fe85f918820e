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

from ..engine.messages import Drain, FrontendAddress, FrontendMembership
from ..nurseries.background import start_background_task_soon
from ..nurseries.process import ProcessSpec
from ..nurseries.supervision_policy import SupervisionPolicy
from ..nurseries.supervisor import supervise
from ..transports.passed_fds import close_fds
from .child_life import ChildLife, ChildPlan, run_child_life
from .connection_balancer import ConnectionBalancer
from .events import ChildGone, ChildReady, OnEvent
from .membership import FrontendDirectory
from .messages import (
    FRONTEND_TO_ROOT,
    ROOT_TO_FRONTEND,
    EngineMembership,
    FrontendInit,
    FrontendLoad,
    FrontendReady,
    PassConnection,
)

# A frontend's control socket holds some hundred messages; one that takes none for so long hangs,
# and the connection is better served by another.
PASS_TIMEOUT_S = 2.0


@attrs.define(eq=False)
class FrontendFleet:
    """The frontends of one run. `engines` gives the newest snapshot, for INIT."""

    module: str
    count: int
    settings_text: str
    boot_timeout_s: float
    run_id: str
    epochs: Iterator[int]
    engines: Callable[[], EngineMembership]
    on_membership: Callable[[FrontendMembership], None]
    on_event: OnEvent
    directory: FrontendDirectory = attrs.field(factory=FrontendDirectory, init=False)
    balancer: ConnectionBalancer = attrs.field(factory=ConnectionBalancer, init=False)
    lives: dict[int, ChildLife] = attrs.field(factory=dict, init=False)
    # Set and replaced whenever a frontend came up or reported its load.
    changed: trio.Event = attrs.field(factory=trio.Event, init=False)
    _connections: int = attrs.field(default=0, init=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Background task `frontends`: keep every frontend up; never returns unless cancelled.

        Raises `RestartLimitExceeded` when one of them keeps dying.
        """
        async with trio.open_nursery() as nursery:
            for rank in range(self.count):
                start_background_task_soon(nursery, self._supervise, rank, name=f"frontend-{rank}")
            task_status.started()

    def publish_engines(self, membership: EngineMembership) -> None:
        """Tell every frontend which engines there are."""
        for life in self.lives.values():
            life.publish(membership)

    async def pass_connection(self, fd: int) -> bool:
        """Give an accepted connection to the frontend with the fewest open streams.

        The descriptor stays the caller's. Waits while no frontend is up; False if the chosen one
        did not take it.
        """
        while (rank := self.balancer.choose()) is None:
            await self.changed.wait()
        life = self.lives[rank]
        self._connections += 1
        with trio.move_on_after(PASS_TIMEOUT_S):
            try:
                await life.control.send(PassConnection(self._connections), [fd])
                return True
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return False  # it died under our hands; the client sees a reset, as if it had it
        return False

    async def drain(self) -> None:
        """Tell every frontend to accept nothing new."""
        for life in list(self.lives.values()):
            with trio.move_on_after(PASS_TIMEOUT_S):
                await life.control.send(Drain())

    async def wait_drained(self) -> None:
        """Return when no stream is open any more."""
        while self.balancer.open_streams() > 0:
            await self.changed.wait()

    async def _supervise(self, rank: int) -> None:
        await supervise(
            partial(self._live, rank),
            child=f"frontend {rank}",
            policy=SupervisionPolicy(random.Random()),
        )

    async def _live(self, rank: int, *, task_status: trio.TaskStatus[None]) -> None:
        name = f"frontend {rank}"
        epoch = next(self.epochs)
        started_s = trio.current_time()

        def ready(life: ChildLife, payload: bytes) -> None:
            address = msgspec.msgpack.decode(payload, type=FrontendReady)
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
            self.lives.pop(rank, None)
            self.balancer.handle_gone(rank)
            self.on_membership(self.directory.handle_gone(rank))
            self.on_event(ChildGone(name, epoch, cause))
            self.notify()

        def handle_message(message: object, fds: Sequence[int]) -> None:
            close_fds(fds)
            assert isinstance(message, FrontendLoad)
            self.balancer.handle_load(rank, message)
            self.notify()

        plan = ChildPlan(
            spec=ProcessSpec(name, self.module),
            role="frontend",
            epoch=epoch,
            sends=ROOT_TO_FRONTEND,
            receives=FRONTEND_TO_ROOT,
            boot_timeout_s=self.boot_timeout_s,
            on_ready=ready,
            on_gone=gone,
            on_message=handle_message,
            on_event=self.on_event,
        )
        init = FrontendInit(
            run_id=self.run_id,
            rank=rank,
            epoch=epoch,
            settings=self.settings_text,
            engines=self.engines(),
        )
        await run_child_life(plan, msgspec.msgpack.encode(init))

    def notify(self) -> None:
        """Wake whoever waits for `changed`."""
        self.changed.set()
        self.changed = trio.Event()
