"""Messages between the root and its frontends, on the control channel (after the handshake).

Plain frozen attrs classes, as `engine.messages` are. A connection crosses as a file descriptor
beside `PassConnection`.
"""

import enum

import attrs

from ..engine.control_messages import Drain, EngineReady, TreeReply, TreeRequest
from ..nurseries.processes.watched import Watch, Watched
from .control.calls import ControlQuestion, EngineState


@attrs.frozen
class EngineHealth:
    """Health of an engine rank. `reason` is a sentence whenever the state is not READY.

    `last_death` says how its process before this one ended, if there was any.
    """

    rank: int
    epoch: int
    state: EngineState
    reason: str = ""
    last_death: str = ""
    restarts: int = 0
    host: str = ""  # the machine that runs it; empty: the root's own


@attrs.frozen(kw_only=True)
class EngineMember:
    """Engine as membership lists it."""

    rank: int
    epoch: int
    state: EngineState
    # The latest READY: the next life is expected to say the same; None once given up.
    latest: EngineReady | None = None
    cause: str = ""  # of the last death: signal, exit code or exception, and last words
    restarts: int = 0
    host: str = ""  # the machine that runs it; empty: the root's own
    silent: bool = False  # ready, but nothing is heard of its host: rely on others now
    draining: bool = False  # it takes nothing new, and what waits there goes elsewhere
    emptying: bool = False  # so does what it runs, where others go on with it exactly

    @property
    def ready(self) -> EngineReady | None:
        """READY of the engine, exactly in state READY."""
        return self.latest if self.state is EngineState.READY else None


@attrs.frozen
class EngineMembership:
    """Engines that there are; numbered full snapshots, the latest wins."""

    number: int
    engines: list[EngineMember]
    # {content: its tokens when an engine died of it, perhaps}: it runs alone up to there.
    suspects: dict[bytes, int] = attrs.field(factory=dict)
    # {content: until when in CLOCK_MONOTONIC it is refused}.
    refused: dict[bytes, float] = attrs.field(factory=dict)
    # {rank: the last epoch} of those that are no more, where none was added since.
    removed: dict[int, int] = attrs.field(factory=dict)
    # {public key: ranks of engines that may come by it}, of other machines.
    link_keys: dict[bytes, list[int]] = attrs.field(factory=dict)


@attrs.frozen
class Doubted:
    """Contents (see `hands`) that ended a frontend, perhaps, or are refused until then."""

    suspects: list[bytes] = attrs.field(factory=list)
    refused: dict[bytes, float] = attrs.field(factory=dict)  # by CLOCK_MONOTONIC


@attrs.frozen(kw_only=True)
class FrontendInit:
    """INIT's payload for a frontend; `settings` is JSON text that `api` understands."""

    run_id: str
    rank: int
    epoch: int  # also the term of its home, see `engine.core.homes`
    settings: str
    engines: EngineMembership
    draining: bool = False  # the server is about to end: take nothing new from the start
    # Names of the descriptors beside INIT, in their order: "progress", then those that there are of
    # "journal", "lock" (of the journals' folder), "connections" (`transports.takeover.memory`) and
    # "counters".
    descriptors: list[str] = attrs.field(factory=list)
    died_ns: int = 0  # when the last process of the rank did, by CLOCK_MONOTONIC; 0: none
    doubted: Doubted = attrs.field(factory=Doubted)


@attrs.frozen(kw_only=True)
class FrontendReady:
    """READY's payload of a frontend: where engines reach it.

    One that `has_slots` has the memory of its connections, ends them as `FrontendLoad.ended` says,
    and takes over those of the process before it; else none of its connections is held.
    """

    input_endpoint: str
    output_endpoint: str
    has_slots: bool = False
    # Where other machines' engines reach it, and by which key they know it; "" if nowhere.
    remote_endpoints: tuple[str, str] = ("", "")
    server_key: bytes = b""


@attrs.frozen
class PassConnection:
    """Accepted connection; its descriptor travels beside the message.

    While it is open `slot` is its own, among the rank's connection slots; -1: it has none, and ends
    with the process, `unheld` for this reason, if it was to be held. One that `is_taken_over` was
    passed to an earlier process of the rank, which may have begun the slot or not.
    """

    connection_id: int
    slot: int = -1
    is_taken_over: bool = False
    unheld: str = ""


@attrs.frozen
class FrontendLoad:
    """Load by which the root balances connections; sent when it changed, at most every 20 ms.

    `engines_ready` are those that this frontend could send a request to.
    """

    open_connections: int
    open_streams: int
    connections_received: int  # of all that were passed, so that the root knows what is under way
    engines_ready: int = 0
    # Slots whose connection was ended by `shutdown` and then closed; each is reported once.
    ended: list[int] = attrs.field(factory=list)
    passed: list[bytes] = attrs.field(factory=list)  # suspects, each once


class ForeignVerb(enum.StrEnum):
    """Verb of a call from one frontend to another about a response, or completion, of its own."""

    GET = "get"
    CANCEL = "cancel"
    DELETE = "delete"
    INPUT = "input"  # the conversation that it was given
    CONVERSATION = "conversation"  # the same, and what it said
    EVENTS = "events"  # those after a number; waits a moment for some
    CLAIM = "claim"  # of an idempotency key, whose home is asked: the one that holds
    EXECUTION = "execution"  # of a request with such a key; waits a moment for its begin, or end
    CHUNKS = "chunks"  # the same of a completion, after an id


@attrs.frozen(kw_only=True)
class ForeignCall:
    """Call of one frontend to another for a response; the root passes it on to that `frontend`.

    It may be lost, with its owner, and be asked again: each sending has a `call_id` of the caller's
    own. `caller_epoch` fences the answer.
    """

    caller: int
    caller_epoch: int
    call_id: int
    frontend: int
    verb: ForeignVerb
    response_id: str
    principal: str  # the owner checks it: another's response does not exist for the caller
    starting_after: int | str | None = None  # of EVENTS a number, of CHUNKS an id
    text: str = ""  # JSON, of CLAIM and EXECUTION


class ForeignOutcome(enum.StrEnum):
    """How a foreign call ended."""

    FOUND = "found"
    NOT_FOUND = "not_found"
    REFUSED = "refused"  # found, but this cannot be done with it; `text` is the refusal as JSON


@attrs.frozen(kw_only=True)
class ForeignReply:
    """The answer; `text` is what was asked for as JSON when it was found."""

    caller: int
    caller_epoch: int
    call_id: int
    outcome: ForeignOutcome
    text: str = ""


@attrs.frozen
class RootCall:
    """A frontend asks the root, for an admin, what commands ask over the run folder's socket."""

    call_id: int
    question: ControlQuestion


@attrs.frozen
class RootReply:
    """The root's answer, JSON text; or why there is none, see `ControlCallRefused`."""

    call_id: int
    text: str
    refusal: str = ""
    code: str = ""


@attrs.frozen
class WatchServer:
    """A frontend has viewers: say what all processes do; everything, when the number is another.

    0: it has none any more.
    """

    number: int


@attrs.frozen
class ServerNews:
    """Changes as JSON objects; all before is void if the first one is a snapshot."""

    texts: list[str]
    is_whole: bool


@attrs.frozen
class FrontendStates:
    """The frontends of this server; full snapshots, the latest wins. Others are between two lives.

    By rank: `ready` has the epochs of the processes that are up, `failed` says why others are given
    up, `restarts` how many processes came after the first.
    """

    ready: dict[int, int] = attrs.field(factory=dict)
    failed: dict[int, str] = attrs.field(factory=dict)
    restarts: dict[int, int] = attrs.field(factory=dict)
    doubted: Doubted = attrs.field(factory=Doubted)


@attrs.frozen(kw_only=True)
class HostReport:
    """Host of this server as its head sees it: `state` is up, silent or lost.

    Figures are of its own process and its link; counts are since it joined, `times_lost` since the
    server's start.
    """

    name: str
    state: str
    engines_ready: int = 0
    rss_bytes: int = 0
    cpu_s: float = 0.0
    round_trip_s: float = 0.0
    lease_left_s: float = 0.0
    beats_lost: int = 0
    dropped: int = 0  # events and news that did not reach the head
    times_lost: int = 0


@attrs.frozen
class HostReports:
    """All hosts, and the last that were lost; full snapshots, the latest wins."""

    hosts: list[HostReport] = attrs.field(factory=list)


@attrs.frozen
class FormsInit:
    """INIT's payload for a form process, of the frontend of this rank."""

    rank: int
    epoch: int


@attrs.frozen
class FormLink:
    """A new socket between a frontend and its form process, beside this; the latest is in use."""


@attrs.frozen
class HandOver:
    """End as soon as the next life of this frontend can go on with every connection.

    Where connections are not held: drain, and leave what outlasts the grace to that.
    """


ROOT_TO_FRONTEND = (
    EngineMembership,
    PassConnection,
    FormLink,
    Drain,
    HandOver,
    TreeRequest,
    ForeignCall,
    ForeignReply,
    RootReply,
    FrontendStates,
    HostReports,
    Watch,
    ServerNews,
)
FRONTEND_TO_ROOT = (
    FrontendLoad,
    TreeReply,
    ForeignCall,
    ForeignReply,
    RootCall,
    Watched,
    WatchServer,
)
ROOT_TO_FORMS = (FormLink, TreeRequest, Watch)
FORMS_TO_ROOT = (TreeReply, Watched)
