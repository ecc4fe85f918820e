"""Signals to the processes of a server, by place: the root sends them, since only it owns pids.

A pid of another's is a guess: its process may have ended, and the number be a stranger's. The root
has reaped none of these, or holds their pidfd.
"""

import signal
from collections.abc import Callable, Iterable
from functools import partial

import attrs

from ...nurseries.processes.process import Process
from ..control.calls import Signal, SignalOrder
from ..errors import ControlCallRefused
from .process_supervisor import ProcessSupervisor

NUMBERS = {
    Signal.KILL: signal.SIGKILL,
    Signal.STOP: signal.SIGSTOP,
    Signal.CONTINUE: signal.SIGCONT,
}


@attrs.frozen
class _Target:
    """A process that may be sent signals."""

    pid: int
    send: Callable[[signal.Signals], None]


def send_signal(
    order: SignalOrder, fleets: Iterable[ProcessSupervisor], killed: dict[str, int]
) -> SignalOrder:
    """Carry it out; returns the order with the pid that was sent it.

    `killed` has the last pid of each place that was killed so: to kill it is done already, as a
    frontend that is asked to kill itself has no time to answer and its successor asks again. Raises
    `ControlCallRefused` when there is no such place, no process there now, or another one.
    """
    targets = {place: target for fleet in fleets for place, target in _targets(fleet).items()}
    if order.place not in targets:
        places = ", ".join(targets)
        raise ControlCallRefused(f"there is no {order.place[:100]!r}; this server has: {places}")
    if order.signal is Signal.KILL and order.pid and killed.get(order.place) == order.pid:
        return order
    target = targets[order.place]
    if target is None:
        raise ControlCallRefused(f"{order.place} has no process now; ask again", "no_process")
    if order.pid not in (0, target.pid):
        reason = f"{order.place} is another process by now, with pid {target.pid}"
        raise ControlCallRefused(reason, "process_changed")
    try:
        target.send(NUMBERS[order.signal])
    except ProcessLookupError as error:
        raise ControlCallRefused(f"{order.place} has just ended", "no_process") from error
    if order.signal is Signal.KILL:
        killed[order.place] = target.pid
    return attrs.evolve(order, pid=target.pid)


def _targets(fleet: ProcessSupervisor) -> dict[str, _Target | None]:
    """Every place of one role: its processes and their workers, then the spares."""
    targets: dict[str, _Target | None] = {}
    present = fleet.present()
    for rank in range(fleet.count):
        name, child = f"{fleet.role} {rank}", present.get(rank)
        targets[name] = None if child is None else _target(child.process)
        for worker, (pid, pidfd) in enumerate(child.workers.pidfds().items() if child else ()):
            send = partial(signal.pidfd_send_signal, pidfd)
            targets[f"{name} worker {worker}"] = _Target(pid, send)
    return targets | {name: _target(each) for name, each in fleet.spares.processes().items()}


def _target(process: Process) -> _Target | None:
    return None if process.exit is not None else _Target(process.pid, process.send_signal)
