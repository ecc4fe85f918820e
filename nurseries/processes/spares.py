"""Warm spares: processes that have imported everything, have said HELLO, and wait for INIT.

A spare has no rank, no epoch and no settings before INIT, so it can become any child of its role,
under whatever the settings are by then; a run that begins takes one if there is one. `SparePolicy`
decides when one is started: a spare must never compete with what is needed now, so it is due only
when every process of the run has been ready for a while, at the start as after a restart. Where a
fork server makes them a spare that was taken is replaced at once. One that is lost while it waits
is no failure of a child: it is replaced, after a delay that doubles as long as spares do not last;
at once if it was killed from outside, which says nothing of the next.

A fork server is the first process of its role, and the role's are forked from the start: else all
that dies until the server has imported, late since it must not compete, imports once more. So it is
again when it was killed. Where processes start others ahead, and both import at once, the server
comes last.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import attrs
import trio

from ..tasks.background import waiting_for
from ..tasks.changes import Changes
from ..tasks.service import start_service_soon
from ..tasks.task_tree import ProcessTree
from .fork_server import ENVIRONMENT, ForkServer
from .kept_process import KeptProcess, keep_process
from .kernel import KERNEL, Kernel
from .orphans import child_pids
from .process import LadderTimes, Process, ProcessSpec, open_process
from .process_exit import ProcessStuck
from .spawned import Spawned

# How the tree calls a spare, and what forks them; behind it comes the role.
SPARE, FORK_SERVER = "spare ", "fork server "
APART = (SPARE, FORK_SERVER)
# The children of a spare cannot be asked, and have no name yet.
_CHILD_NAME = "worker"
# How long all must have been ready: a process that became ready a moment ago has work waiting.
# Pulled out of the air.
SETTLE_S = 1.0
# A fork server that comes up is waited for so long: ten times what it takes on a busy machine.
SERVER_PATIENCE_S = 10.0
# Delay from the loss of a spare to the next start: a machine that cannot keep one is left alone.
DELAY_MIN_S = 1.0
DELAY_MAX_S = 60.0
# A spare that lasted so long could be kept: the delay begins anew.
LASTED_S = 60.0


@attrs.define(eq=False)
class Readiness:
    """Which children of a run are wanted and not ready; shared by all its fleets."""

    # When the last of them became ready; infinite while one is not.
    all_ready_since_s: float = attrs.field(default=math.inf, init=False)
    # Set when all have become ready, or when a spare's state may have changed.
    changed: Changes = attrs.field(factory=Changes, init=False)
    _starting: set[str] = attrs.field(factory=set, init=False)

    def handle_starting(self, child: str) -> None:
        """`child` is to be brought up, or has died."""
        self._starting.add(child)
        self.all_ready_since_s = math.inf

    def handle_ready(self, child: str) -> None:
        """`child` is ready, or given up. Nothing changes if it was."""
        if child not in self._starting:
            return
        self._starting.remove(child)
        if not self._starting:
            self.all_ready_since_s = trio.current_time()
            self.notify()

    def notify(self) -> None:
        """Have those who wait look again."""
        self.changed.notify()

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        assert not (self._starting and self.all_ready_since_s < math.inf)


@attrs.define(eq=False)
class SparePolicy:
    """The place of one spare: empty, or with one that was started at `since_s`. Sans-IO."""

    settle_s: float = attrs.field(default=SETTLE_S, validator=attrs.validators.ge(0))
    # When the present one was started; None while there is none.
    since_s: float | None = attrs.field(default=None, init=False)
    # How many were lost in a row; each doubles the delay.
    losses: int = attrs.field(default=0, init=False)
    _not_before_s: float = attrs.field(default=-math.inf, init=False)

    def next_start(self, all_ready_since_s: float) -> float:
        """When a spare is due; infinite if there is one, or not all children are ready."""
        if self.since_s is not None:
            return math.inf
        return max(all_ready_since_s + self.settle_s, self._not_before_s)

    def handle_started(self, now: float) -> None:
        """There is one."""
        assert self.since_s is None, "a place is for one"
        self.since_s = now

    def handle_good(self) -> None:
        """Note that the spare was taken, or killed from outside when warm; the next needs no
        delay."""
        assert self.since_s is not None
        self.since_s = None
        self.losses = 0

    def handle_lost(self, now: float) -> None:
        """Note that the spare died, hung, or did not come up."""
        assert self.since_s is not None
        lasted_s, self.since_s = now - self.since_s, None
        self.losses = 1 if lasted_s >= LASTED_S else self.losses + 1
        # Bounded before the power is taken.
        doublings = min(self.losses - 1, int(math.log2(DELAY_MAX_S / DELAY_MIN_S)) + 1)
        self._not_before_s = now + min(DELAY_MAX_S, DELAY_MIN_S * 2.0**doublings)

    def check_invariants(self) -> None:
        """Asserts what must hold after every event."""
        assert self.losses >= 0
        assert self.since_s is None or self.next_start(0.0) == math.inf


@attrs.define(eq=False)
class Spares:
    """Up to `count` spares for the children of one `role`, which run `module`.

    `warm_up_s` is how long one may take to HELLO. With `forks` they are made by a fork server,
    whose module starts no threads while it is imported; it gets the `preparation`, see `run_child`.
    """

    role: str
    module: str
    count: int
    warm_up_s: float
    ladder: LadderTimes
    readiness: Readiness
    ahead: Sequence[str] = ()
    forks: bool = False
    preparation: bytes = b""
    environment: Mapping[str, str] = attrs.field(factory=dict)  # see `ProcessSpec`
    kernel: Kernel = KERNEL
    settle_s: float = SETTLE_S
    # Called with a spare that cannot be killed, and why. It is given up: no other is kept in its
    # place.
    on_stuck: Callable[[str, str], None] = lambda name, reason: None
    # {place: the process that is kept for it}, until it is taken over or reaped.
    _kept: dict[int, KeptProcess] = attrs.field(factory=dict, init=False)
    _policies: dict[int, SparePolicy] = attrs.field(factory=dict, init=False)
    _server: ForkServer | None = attrs.field(default=None, init=False)
    _server_policy: SparePolicy = attrs.field(factory=SparePolicy, init=False)
    # Whether it is the first process of its role.
    _has_first: bool = attrs.field(default=False, init=False)

    @property
    def _server_name(self) -> str:
        return f"{FORK_SERVER}{self.role}"

    def _name(self, place: int) -> str:
        return f"{SPARE}{self.role} {place}"

    @property
    def _has_server(self) -> bool:
        return self.forks and self.kernel.has_forks

    def start_first(self, nursery: trio.Nursery) -> None:
        """Start the background task `fork-server-ROLE` at once, unless something starts ahead of
        each process. For the rest see `start`.
        """
        self._has_first = self._has_server and self.count > 0 and not self.ahead
        if self._has_first:
            self._start_server(nursery)

    def start(self, nursery: trio.Nursery) -> None:
        """Start a background task `spare-ROLE-N` for each place, and `fork-server-ROLE`, if it is
        not there. They never return by themselves.

        Nothing begins in a nursery that ends. Cancellation: the spare is stopped by the ladder, and
        reaped.
        """
        if nursery.cancel_scope.cancel_called:
            return
        if self._has_server and self.count and not self._has_first:
            self._start_server(nursery)
        for place in range(self.count):
            policy = self._policies[place] = SparePolicy(self.settle_s)
            keep = partial(self._keep_one, place)
            fill = partial(self._fill, self._name(place), policy, keep, self._can_start_since)
            start_service_soon(nursery, fill, name=f"spare-{self.role}-{place}")

    def _start_server(self, nursery: trio.Nursery) -> None:
        policy = self._server_policy = SparePolicy(self.settle_s)
        fill = partial(
            self._fill, self._server_name, policy, self._keep_server, self._server_can_start_since
        )
        start_service_soon(nursery, fill, name=f"fork-server-{self.role}")

    async def take(self) -> Spawned | None:
        """A spare, warm if there is such, or what the fork server makes now; else None. The caller
        owns it at once.

        One that is found dead or stopped is passed over, and replaced later. A fork server that is
        the first process of its role is waited for. Cancellation: nothing was taken.
        """
        if (spawned := self._take_kept()) is not None:
            return spawned
        with trio.move_on_after(SERVER_PATIENCE_S):
            while self._is_first and not self._warm_server:
                with waiting_for(f"the {self._server_name}"):
                    await self.readiness.changed.wait()
        if (server := self._warm_server) is None:
            return None
        try:
            return await server.fork(self.ahead)
        except OSError:
            return None  # it is gone, or there is no memory: a spawn tells

    def _take_kept(self) -> Spawned | None:
        for place, kept in sorted(self._kept.items(), key=lambda item: (not item[1].warm, item[0])):
            if (spawned := kept.take()) is not None:
                del self._kept[place]
                self._policies[place].handle_good()
                return spawned
        return None

    def to_reap(self) -> set[int]:
        """Processes that are ours to reap, by number."""
        return {process.pid for process in self.processes().values()}

    def processes(self) -> dict[str, Process]:
        """Processes kept by this object, by name."""
        servers = {} if self._server is None else {self._server_name: self._server.process}
        return servers | {self._name(place): kept.process for place, kept in self._kept.items()}

    def trees(self) -> list[ProcessTree]:
        """Spares as what they are; they cannot be asked, the kernel knows their children."""
        trees = [self._tree(place, kept) for place, kept in sorted(self._kept.items())]
        if self._server is not None:
            facts = {"phase": "warm" if self._server.warm else "starts"}
            trees.append(ProcessTree(self._server_name, self._server.process.pid, facts))
        return trees

    def _tree(self, place: int, kept: KeptProcess) -> ProcessTree:
        since_s = trio.current_time() - kept.since_s
        facts = {"phase": "warm" if kept.warm else "starts", "since": f"{since_s:.1f} s"}
        pid = kept.process.pid
        children = [ProcessTree(f"{_CHILD_NAME} {n}", p) for n, p in enumerate(child_pids(pid))]
        return ProcessTree(self._name(place), pid, facts, processes=children)

    @property
    def _is_first(self) -> bool:
        """Whether the role's processes wait for the server: not when it could not be kept."""
        return self._has_first and not self._server_policy.losses

    def _server_can_start_since(self) -> float:
        return -math.inf if self._is_first else self.readiness.all_ready_since_s

    @property
    def _warm_server(self) -> ForkServer | None:
        return self._server if self._server is not None and self._server.warm else None

    def _can_start_since(self) -> float:
        if self._warm_server and not self.ahead:
            return -math.inf  # a fork is no work that would be in the way
        if self._has_server and not self._warm_server and not self._server_policy.losses:
            return math.inf  # the server is to come
        return self.readiness.all_ready_since_s

    async def _fill(
        self,
        name: str,
        policy: SparePolicy,
        keep: Callable[[SparePolicy], Awaitable[None]],
        since: Callable[[], float],
    ) -> None:
        """Background task: keep one there, as the policy says."""
        while True:
            due_s = policy.next_start(since())
            lost = f" (lost: {policy.losses})" if policy.losses else ""
            with (
                trio.move_on_at(due_s) as due,
                waiting_for(f"all to be ready, to start a spare{lost}"),
            ):
                await self.readiness.changed.wait()
            still_s = policy.next_start(since())
            if due.cancelled_caught and due_s == still_s:
                try:
                    await keep(policy)
                except ProcessStuck as stuck:  # another would be left behind as well
                    self.on_stuck(name, str(stuck))
                    await trio.sleep_forever()

    async def _keep_one(self, place: int, policy: SparePolicy) -> None:
        policy.handle_started(trio.current_time())

        def kept(process: KeptProcess) -> None:
            self._kept[place] = process

        try:
            spec = ProcessSpec(
                self._name(place),
                self.module,
                ahead=tuple(self.ahead),
                environment=self.environment,
                spawned=await server.fork(self.ahead) if (server := self._warm_server) else None,
                kernel=self.kernel,
            )
            await keep_process(spec, warm_up_s=self.warm_up_s, ladder=self.ladder, on_kept=kept)
        except OSError:
            pass  # no spare, for want of descriptors or memory: none is needed yet
        finally:
            if policy.since_s is not None:
                waited = self._kept.pop(place, None)
                _handle_end(policy, waited.process if waited is not None and waited.warm else None)

    async def _keep_server(self, policy: SparePolicy) -> None:
        policy.handle_started(trio.current_time())
        environment = {**self.environment, **ENVIRONMENT}
        spec = ProcessSpec(
            self._server_name, self.module, environment=environment, forks=True, kernel=self.kernel
        )
        server: ForkServer | None = None
        try:
            async with open_process(spec, ladder=self.ladder) as process:
                server = self._server = ForkServer(process)
                try:
                    with trio.move_on_after(self.warm_up_s):
                        await server.wait_warm(self.preparation)
                    if server.warm:
                        self.readiness.notify()
                        await process.wait_exited()
                finally:
                    self._server = None
                    await server.close()
        except OSError:
            pass  # as above
        finally:
            is_good = server is not None and server.warm and not server.hung
            _handle_end(policy, process if is_good else None)
            self.readiness.notify()


def _handle_end(policy: SparePolicy, good: Process | None) -> None:
    """Note the end of a spare that was not taken. `good` is its process if that was warm and
    answered."""
    if good is not None and good.exit is not None and good.exit.was_killed:
        policy.handle_good()
    else:
        policy.handle_lost(trio.current_time())
