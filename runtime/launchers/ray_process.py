"""Process of the placer of a Ray cluster: the one that has Ray in it.

Ray brings threads, signal handlers and 80 MB, and ends the whole process when its cluster is gone
for a minute. So it is in none of the processes that serve: this one may die at any time, and the
next one goes on with the actors that it finds.
"""

import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import attrs
import msgspec
import trio

from ...nurseries.processes.boot import take_signals
from ...nurseries.processes.child import ChildFds, run_child
from ...nurseries.processes.progress_page import open_slot, passes_shown
from ...nurseries.processes.title import set_title
from ...transports.control.channel import ControlChannel
from ...transports.control.handshake import perform_child_handshake
from ...transports.control.passed_fds import close_fds
from .messages import PLACER_TO_ROOT, ROOT_TO_PLACER, PlacerInit
from .placements import (
    ActorAnswer,
    HostAlive,
    HostOver,
    KillActor,
    OutOfReach,
    Placements,
    PlacerOrder,
    StartHost,
    StopHost,
)
from .placer import Placer
from .ray_actor import HostActor

# Of all servers in a cluster; actors are told apart by their names.
NAMESPACE = "triolet"
# Ray itself tries for more than a minute, and says less.
PROBE_S = 5.0
# Threads of Ray's may hang: nothing of them is waited for.
EXIT_BOUND_S = 2.0


@attrs.define(eq=False)
class RayCluster:
    """A Ray cluster, as a `Cluster`. `ray` is its package."""

    ray: Any
    init: PlacerInit
    # {actor: its handle}, and {call: actor} of what was asked and not answered.
    _handles: dict[str, Any] = attrs.field(factory=dict, init=False)
    _calls: dict[Any, str] = attrs.field(factory=dict, init=False)

    def connect(self) -> None:
        """Join the cluster, as a driver. Raises `ConnectionError`, or what else Ray does."""
        self.ray.init(
            address=self.init.ray_address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address=self.init.node_address,
        )

    def listed(self) -> list[str]:
        """Names of all actors of servers' hosts that there are, of whatever run."""
        return list(self.ray.util.list_named_actors())

    def carry_out(self, order: PlacerOrder) -> None:
        """Have an order carried out; what became of it, an answer tells."""
        handle = self._handle_of(order.actor)
        match order:
            case StartHost(actor=actor, host=host):
                if handle is None:
                    handle = self._handles[actor] = self._make(actor)
                words = [*self.init.words, "--name", host.name]
                self._calls[handle.start.remote(words, host.ticket)] = actor
            case StopHost(actor=actor) if handle is not None:
                self._calls[handle.stop.remote()] = actor
            case KillActor() if handle is not None:
                self.ray.kill(handle)

    def _handle_of(self, actor: str) -> Any:
        if actor not in self._handles:
            try:
                self._handles[actor] = self.ray.get_actor(actor)
            except ValueError:
                return None  # there is none of this name
        return self._handles[actor]

    def _make(self, actor: str) -> Any:
        resources = dict(self.init.resources)
        options: dict[str, Any] = {
            "name": actor,
            "lifetime": "detached",
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
            "num_cpus": resources.pop("CPU", 0.0),
            "num_gpus": resources.pop("GPU", 0.0),
            "memory": resources.pop("memory", 0.0) or None,
            "resources": resources or None,
        }
        return self.ray.remote(HostActor).options(**options).remote()

    def look(self, actors: Sequence[str], slice_s: float) -> list[tuple[str, ActorAnswer]]:
        """Ask these actors how they are; answers that came within the slice."""
        answers: list[tuple[str, ActorAnswer]] = []
        asked = set(self._calls.values())
        for actor in actors:
            if actor in asked:
                continue
            handle = self._handle_of(actor)
            if handle is None:
                answers.append((actor, HostOver("has no actor any more", is_certain=False)))
            else:
                self._calls[handle.poll.remote()] = actor
        if self._calls:
            calls = list(self._calls)
            ready, _ = self.ray.wait(calls, num_returns=len(calls), timeout=slice_s)
            answers += [(self._calls.pop(call), self._answer(call)) for call in ready]
        for actor, answer in answers:
            if isinstance(answer, HostOver):
                self._handles.pop(actor, None)
        return answers

    def _answer(self, call: Any) -> ActorAnswer:
        errors = self.ray.exceptions
        try:
            code = self.ray.get(call)
        except errors.ActorUnavailableError as error:
            return OutOfReach(_first_line(error))
        except errors.RayActorError as error:
            return HostOver(f"its actor died: {_first_line(error)}", is_certain=False)
        except errors.RayError as error:
            return HostOver(f"did not start: {_first_line(error)}", is_certain=True)
        if code is None:
            return HostAlive()
        how = f"code {code}" if code >= 0 else signal.Signals(-code).name
        return HostOver(f"ended with {how}", is_certain=True)

    def kill_all(self, actors: Sequence[str]) -> None:
        """End these actors at once."""
        for actor in actors:
            if (handle := self._handle_of(actor)) is not None:
                self.ray.kill(handle)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]


async def is_there(address: str) -> bool:
    """Whether somebody listens at HOST:PORT. What is named otherwise, Ray looks for itself."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return True
    with trio.move_on_after(PROBE_S), suppress(OSError):
        async with await trio.open_tcp_stream(host, int(port)):
            return True
    return False


async def main(child: ChildFds) -> None:
    """Place hosts until a stop is ordered."""
    control = ControlChannel(child.control, sends=PLACER_TO_ROOT, receives=ROOT_TO_PLACER)
    handshake = await perform_child_handshake(control, "placer")
    init = msgspec.msgpack.decode(handshake.init, type=PlacerInit)
    set_title("placer")
    try:
        with open_slot(handshake.fds[0], 0) as progress, passes_shown(progress):
            try:
                import ray
            except ImportError:
                await handshake.refuse("needs Ray: pip install 'triolet[ray]'", "launcher")
            cluster = RayCluster(ray, init)
            await handshake.progress("join Ray", 0.0)
            if not await is_there(init.ray_address):
                reason = f"{init.ray_address} does not answer: there is no Ray cluster"
                await handshake.refuse(reason, "ray_address")
            try:
                await trio.to_thread.run_sync(cluster.connect, abandon_on_cancel=True)
            except Exception as error:  # whatever Ray raises where there is no cluster
                reason = f"{init.ray_address} is no Ray cluster that can be reached: {error}"
                await handshake.refuse(reason, "ray_address")
            take_signals(lambda _number, _frame: None)  # Ray has its own, which would end us
            await handshake.ready(b"")
            await Placer(control, cluster, Placements(init.run_id)).run()
    finally:
        close_fds(handshake.fds)


if __name__ == "__main__":
    run_child(main, exit_bound_s=EXIT_BOUND_S)
