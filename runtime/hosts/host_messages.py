"""Messages between a head and its hosts, on the host link.

Plain frozen attrs classes, as those of `runtime.messages`. Who may speak at all is decided before
any of them, by the keys of the connection.

A host and its head may be of neighbouring versions for as long as machines are being upgraded. Both
speak the lower one then: fields are only ever appended, with defaults, and a kind of message or of
question goes only to who has its version. A host that is refused for its version, by a head of the
one before, asks again in that.
"""

import attrs

from ...engine.control_messages import FrontendMembership
from ...nurseries.processes.watched import Watch
from ...transports.links.link_keys import LinkKeys
from ..control.calls import ControlQuestion
from ..messages import EngineMembership

# Version of these messages; a head takes its own, and the one before. The package's is only said.
HOST_WIRE = 2
# The first in which engines can be listed as draining, and a host be asked to drain.
DRAIN_WIRE = 2
# The first that has what viewers see: `Watch`, `NewsTaken`, `HostNews`, `HostFigures`.
VIEW_WIRE = 2


@attrs.frozen(kw_only=True)
class LeaseSettings:
    """Times of a host link, in seconds; the head's hold, and are told to each host."""

    beat_s: float = attrs.field(default=0.1, validator=attrs.validators.gt(0))
    # Ten beats: streams move then, which costs each of them a prefill, and no more if it was early.
    suspect_s: float = 1.0
    # Where a link is irregular, up to here.
    suspect_max_s: float = 2.5
    # How long a host that hears nothing computes on.
    lease_s: float = 3.0
    # A connection that was reset is opened again within, unless its process is no more.
    reopen_s: float = attrs.field(default=0.3, validator=attrs.validators.ge(0))

    def __attrs_post_init__(self) -> None:
        times = [self.beat_s, self.suspect_s, self.suspect_max_s, self.lease_s]
        if times != sorted(times) or self.suspect_max_s == self.lease_s:
            raise ValueError("not beat_s <= suspect_s <= suspect_max_s < lease_s")


# ---- host to head


@attrs.frozen(kw_only=True)
class Join:
    """A host offers its engines. `incarnation` is drawn for this life of the host.

    One that hears nothing asks again, with the next `attempt`.
    """

    wire: int
    version: str  # of the package
    name: str
    incarnation: int
    engines: int  # how many ranks it needs
    model_hash: str  # of the model's files, by content
    attempt: int = 1
    engine_wire: int = 1  # version of what its engines and frontends exchange
    # Public key by which it came, as it says: so that it is told when that is retired.
    key: bytes = b""


@attrs.frozen
class HostBeat:
    """The host lives; `echoed` is the newest `HeadBeat.echoed` that it got."""

    number: int
    echoed: int


@attrs.frozen
class HostSnapshot:
    """Engines of the host; numbered full snapshots, the latest wins. Evidence is told apart."""

    number: int
    membership: EngineMembership


@attrs.frozen
class HostDeath:
    """A step may have ended an engine's life `epoch`; told before the snapshot that unlists it."""

    positions: dict[bytes, int]
    epoch: int


@attrs.frozen
class HostPassed:
    """Suspects that ran alone past their position, as an engine's `Passed`."""

    positions: dict[bytes, int]


@attrs.frozen
class OrderReply:
    """The host's answer to an order, JSON text; or why there is none, see `ControlCallRefused`."""

    call_id: int
    text: str
    refusal: str = ""
    code: str = ""


@attrs.frozen
class HostEvent:
    """Line for people about what happened at the host; for viewers a mark of `place`, if it has."""

    text: str
    is_warning: bool = False
    place: str = ""
    epoch: int = 0
    kind: str = ""
    cause: str = ""


@attrs.frozen
class EpochsWanted:
    """The block of epochs is nearly used up; another one, please."""


@attrs.frozen(kw_only=True)
class HostFigures:
    """Figures of the host's own process and of its link, now and then; counts only grow.

    `dropped` counts events and news that the head did not get.
    """

    process_id: int
    rss_bytes: int
    cpu_s: float
    round_trip_s: float = 0.0
    dropped: int = 0


@attrs.frozen
class HostNews:
    """Changes at the host for viewers, as `Watched`; answered by a `NewsTaken` before the next."""

    texts: list[str]


# Reason of a host that could not go on, by which it is lost all the same.
LEASE_OVER = "its lease is over"


@attrs.frozen
class Leave:
    """The host has ended its engines, for `reason`, and speaks no more."""

    reason: str


# ---- head to host


@attrs.frozen(kw_only=True)
class Welcome:
    """The host is in: its blocks of ranks and epochs, and what its engines are to be."""

    run_id: str
    first_rank: int
    first_epoch: int
    epochs: int
    settings: bytes  # RuntimeSettings, as msgpack
    lease: LeaseSettings
    attempt: int = 1  # of the Join that this answers: the lease begins with its sending
    # Key pair by which frontends let its engines in.
    link_keys: LinkKeys | None = None


@attrs.frozen
class JoinRefused:
    """The host may not join, for the one fact that `reason` names."""

    reason: str
    may_retry: bool = False  # as another incarnation, in a while
    wire: int = 1  # the head's


@attrs.frozen
class HeadBeat:
    """The head lives; `echoed` is the newest `HostBeat.number` that it got and may confirm.

    That came `held_s` before this was sent, which is no time of the way.
    """

    number: int
    echoed: int
    held_s: float = 0.0


@attrs.frozen
class HostOrder:
    """Question to the host about its places, answered by an `OrderReply`."""

    call_id: int
    question: ControlQuestion


@attrs.frozen
class Excused:
    """Requests ended these lives of engines: they count toward nothing."""

    epochs: list[int]


@attrs.frozen
class MoreEpochs:
    """Another block of epochs, above all before."""

    first_epoch: int
    epochs: int


@attrs.frozen
class NewsTaken:
    """The head has taken a `HostNews`; another may come."""


HOST_TO_HEAD = (
    Join,
    HostBeat,
    HostSnapshot,
    HostDeath,
    HostPassed,
    OrderReply,
    HostEvent,
    EpochsWanted,
    Leave,
    HostFigures,
    HostNews,
)
HEAD_TO_HOST = (
    Welcome,
    JoinRefused,
    HeadBeat,
    FrontendMembership,
    HostOrder,
    Excused,
    MoreEpochs,
    Watch,
    NewsTaken,
)
