"""Questions that a running server's root answers over its control socket, and their answers.

Commands ask over the run folder's socket, admins by a frontend. Plain frozen attrs classes, apart
from `runtime.messages`, so that a command imports no message of an engine.
"""

import enum

import attrs


class EngineState(enum.StrEnum):
    """State of an engine, from the root's and this frontend's point of view."""

    STARTING = "starting"  # its process runs and is not ready, or its link is not up
    READY = "ready"
    SILENT = "silent"  # ready, and answers nothing now: another machine, or the way there
    RESTARTING = "restarting"  # died; a successor is being started
    FAILED = "failed"  # given up: restarting did not help


class Role(enum.StrEnum):
    """Role of a process of a server."""

    ENGINE = "engine"
    FRONTEND = "frontend"
    FORMS = "forms"  # checks the forms of one frontend, see `forms`


@attrs.frozen
class Place:
    """A role's rank, whichever process has it."""

    role: Role
    rank: int

    def __str__(self) -> str:
        return f"{self.role} {self.rank}"


class ControlCall(enum.StrEnum):
    """Call of a root, by commands and by admins."""

    TREE = "tree"
    PLACES = "places"  # all there are, as they are now
    RESTART = "restart"  # a place; without one, all that were given up
    SIGNAL = "signal"  # a process, by its place
    RELOAD = "reload"  # the file of hosts' keys
    DRAIN = "drain"  # a host: its engines finish or give away what they have, and it ends
    WATCH = "watch"  # what changes, from now on; over the run folder's socket alone


class Signal(enum.StrEnum):
    """Signal that a process may be sent."""

    KILL = "kill"
    STOP = "stop"
    CONTINUE = "continue"


@attrs.frozen
class SignalOrder:
    """A signal for the process at `place` ("engine 0 worker 1"); only for `pid` if that is set."""

    place: str
    signal: Signal
    pid: int = 0


@attrs.frozen
class ControlQuestion:
    """Question to a root; `order` is of SIGNAL, `host` of DRAIN."""

    call: ControlCall
    place: Place | None = None
    order: SignalOrder | None = None
    host: str = ""

    @property
    def named(self) -> str:
        """Name of the place that it is about; "" if about none or all."""
        if self.host:
            return f"host {self.host}"
        return self.order.place if self.order is not None else str(self.place or "")


@attrs.frozen
class RestartedPlace:
    """A place that was ordered to begin anew; it `was` starting, ready or failed."""

    place: Place
    was: EngineState


@attrs.frozen
class PlaceState:
    """A place as it is now: starting, ready or failed, for this `reason`; `epoch` 0: no process."""

    place: Place
    state: EngineState
    epoch: int
    reason: str = ""


@attrs.frozen
class ServerPlaces:
    """Every place of a server; `is_linked`: frontends could send to all engines that are up.

    One that is ordered to begin anew has served out, ended and booted in `restart_s`, or failed.
    """

    places: list[PlaceState]
    is_linked: bool
    restart_s: float


@attrs.frozen
class News:
    """Texts in order; with a snapshot as the first of them if `is_whole`."""

    texts: list[str]
    is_whole: bool
