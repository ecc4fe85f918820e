"""Events of a run's processes, for log lines and progress bars.

Plain frozen facts with a sentence each.
"""

from collections.abc import Callable
from typing import Any

import attrs


@attrs.frozen
class FileDownloaded:
    """File of a hub's model that is in the cache now; it was not before."""

    model: str
    file: str
    size_bytes: int
    seconds: float


@attrs.frozen
class ModelFetched:
    """Hub's model whose files are all there. `remark` is not empty if the hub was not asked."""

    model: str
    revision: str
    remark: str = ""


@attrs.frozen
class ChildStarting:
    """A process was spawned."""

    child: str
    epoch: int


@attrs.frozen
class ChildProgress:
    """A starting process reports: `fraction` of `phase` is done."""

    child: str
    phase: str
    fraction: float


@attrs.frozen
class ChildPhaseEnded:
    """A starting process is through with `phase`, which took `seconds`; once for each."""

    child: str
    phase: str
    seconds: float


@attrs.frozen
class ChildReady:
    """A process can take work, `boot_s` seconds after its spawn."""

    child: str
    epoch: int
    boot_s: float


@attrs.frozen
class ChildHung:
    """A process, or a worker of it, stands still and is killed; `cause` says which and how."""

    child: str
    epoch: int
    cause: str


@attrs.frozen
class EngineDiffers:
    """An engine is ready whose numerics id is not that of the engine before it.

    Its model folder was exchanged, or its code: what was begun before does not go on there.
    """

    child: str
    epoch: int
    numerics_id: str
    before: str


@attrs.frozen
class ChildGone:
    """A process ended unasked, for `cause`; everything of it is gone by pidfd."""

    child: str
    epoch: int
    cause: str


@attrs.frozen
class ChildStopped:
    """A process was stopped in order; everything of it is gone by pidfd."""

    child: str
    epoch: int


@attrs.frozen
class ChildFailed:
    """A process is given up for good; `cause` says whether it died too often or refused."""

    child: str
    cause: str


@attrs.frozen
class RequestRefused:
    """Request that `child` died of: its content is refused for a while."""

    child: str
    content: str


@attrs.frozen
class HostsAwaited:
    """A head without engines of its own waits for a first host, which dials this address; for one
    that a launcher begins, if it is empty.
    """

    address: str


@attrs.frozen
class HostJoined:
    """A host serves these ranks under its head from now on; told at both ends."""

    host: str
    ranks: list[int]
    remark: str = ""


@attrs.frozen
class HostSilent:
    """A host says nothing, or hears nothing: its streams go on elsewhere, where they can."""

    host: str


@attrs.frozen
class HostHeard:
    """A silent host is back, with the engines that it had."""

    host: str


@attrs.frozen
class HostLost:
    """A host is lost to its head, or the head to the host, for `cause`: its engines end.

    `is_in_order`: it has left, and nobody has lost anything.
    """

    host: str
    cause: str
    is_in_order: bool = False


@attrs.frozen
class HostSaid:
    """Line of what happened at a host, and its mark for viewers if it was of a process."""

    host: str
    text: str
    is_warning: bool
    mark: dict[str, Any] | None = None


@attrs.frozen
class Serving:
    """The run accepts connections at `url`."""

    url: str
    boot_s: float


@attrs.frozen
class Draining:
    """Nothing new is accepted; `open_streams` are still served, at most for `grace_s`."""

    open_streams: int
    grace_s: float


@attrs.frozen
class Stopped:
    """The run has ended in order: no process of it is left."""


RunEvent = (
    FileDownloaded
    | ModelFetched
    | ChildStarting
    | ChildProgress
    | ChildPhaseEnded
    | ChildReady
    | ChildHung
    | EngineDiffers
    | ChildGone
    | ChildStopped
    | ChildFailed
    | RequestRefused
    | HostsAwaited
    | HostJoined
    | HostSilent
    | HostHeard
    | HostLost
    | HostSaid
    | Serving
    | Draining
    | Stopped
)
OnEvent = Callable[[RunEvent], None]


def ignore_event(event: RunEvent) -> None:
    """Ignore an event: for embedders that do not watch."""
