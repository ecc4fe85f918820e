"""Signals of people to the processes of a server, by place: the root sends them, as their parent.

A pid of another's is a guess: its process may have ended, and the number be a stranger's. The root
has reaped none of these, or holds their pidfd.
"""

import signal
from collections.abc import Callable, Mapping

import attrs

from ...nurseries.processes.process import Process
from ..control.calls import Signal, SignalOrder
from ..errors import ControlCallRefused

NUMBERS = {
    Signal.KILL: signal.SIGKILL,
    Signal.STOP: signal.SIGSTOP,
    Signal.CONTINUE: signal.SIGCONT,
}


@attrs.frozen
class SignalTarget:
    """A process that may be sent signals."""

    pid: int
    send: Callable[[signal.Signals], None]


def target_of(process: Process) -> SignalTarget | None:
    """The process as a target; None if it has ended."""
    return None if process.exit is not None else SignalTarget(process.pid, process.send_signal)


def send_signal(
    order: SignalOrder, targets: Mapping[str, SignalTarget | None], killed: dict[str, int]
) -> SignalOrder:
    """Carry it out; returns the order with the pid that was sent it.

    `targets` has every place. `killed` has the last pid of each that was killed so: to kill it is
    done already, as a frontend that is asked to kill itself has no time to answer and its successor
    asks again. Raises `ControlCallRefused` when there is no such place, no process there now, or
    another one.
    """
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
