"""Messages between the root and its frontends, on the control channel (after the handshake).

Plain frozen attrs classes, as `engine.messages` are. A connection crosses as a file descriptor
beside `PassConnection`.
"""

import enum

import attrs

from ..engine.messages import Drain, EngineReady, TreeReply, TreeRequest


class EngineState(enum.StrEnum):
    """Where one engine is, from the root's and this frontend's point of view."""

    STARTING = "starting"  # its process runs and is not ready, or its link is not up
    READY = "ready"
    RESTARTING = "restarting"  # died; a successor is being started
    FAILED = "failed"  # given up: restarting did not help


@attrs.frozen
class EngineHealth:
    """One engine rank. `reason` is a sentence whenever the state is not READY.

    `last_death` says how its process before this one ended, if there was any.
    """

    rank: int
    epoch: int
    state: EngineState
    reason: str = ""
    last_death: str = ""


class Role(enum.StrEnum):
    """What a process of a server is for."""

    ENGINE = "engine"
    FRONTEND = "frontend"


@attrs.frozen
class Place:
    """A role's rank, whichever process has it."""

    role: Role
    rank: int

    def __str__(self) -> str:
        return f"{self.role} {self.rank}"


class ControlCall(enum.StrEnum):
    """What may be asked of a root, by commands and by admins."""

    TREE = "tree"
    PLACES = "places"  # all there are, as they are now
    RESTART = "restart"  # a place; without one, all that were given up


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


@attrs.frozen(kw_only=True)
class EngineMember:
    """One engine as membership lists it. `ready` is set exactly in state READY."""

    rank: int
    epoch: int
    state: EngineState
    ready: EngineReady | None = None
    cause: str = ""  # of the last death: signal, exit code or exception, and last words
    restarts: int = 0


@attrs.frozen
class EngineMembership:
    """All engines there are; numbered full snapshots, the latest wins."""

    number: int
    engines: list[EngineMember]
    # {content: its tokens when an engine died of it, perhaps}: it runs alone up to there.
    suspects: dict[bytes, int] = attrs.field(factory=dict)
    # {content: until when in CLOCK_MONOTONIC it is refused}.
    refused: dict[bytes, float] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class FrontendInit:
    """INIT's payload for a frontend; `settings` is JSON text that `api` understands."""

    run_id: str
    rank: int
    epoch: int
    term: int  # of its home, see `engine.core.homes`
    settings: str
    engines: EngineMembership
    draining: bool = False  # the server is about to end: take nothing new from the start


@attrs.frozen(kw_only=True)
class FrontendReady:
    """READY's payload of a frontend: where engines reach it."""

    input_endpoint: str
    output_endpoint: str


@attrs.frozen
class PassConnection:
    """One accepted connection; its descriptor travels beside the message."""

    connection_id: int


@attrs.frozen
class FrontendLoad:
    """What the root balances connections by; sent when it changed, at most every 20 ms.

    `engines_ready` are those that this frontend could send a request to.
    """

    open_connections: int
    open_streams: int
    connections_received: int  # of all that were passed, so that the root knows what is under way
    engines_ready: int = 0


class ForeignVerb(enum.StrEnum):
    """What one frontend may ask another to do with a response, or completion, of its own."""

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
    """One frontend asks another for a response; the root passes it on to rank `frontend`.

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
    call: ControlCall
    place: Place | None = None


@attrs.frozen
class RootReply:
    """The root's answer, JSON text; or why there is none."""

    call_id: int
    text: str
    refusal: str = ""


@attrs.frozen
class FrontendStates:
    """The frontends of this server; full snapshots, the latest wins. Others are between two lives.

    `ready` has the epochs of those that are up, `failed` says why the others are given up.
    """

    ready: dict[int, int] = attrs.field(factory=dict)
    failed: dict[int, str] = attrs.field(factory=dict)


ROOT_TO_FRONTEND = (
    EngineMembership,
    PassConnection,
    Drain,
    TreeRequest,
    ForeignCall,
    ForeignReply,
    RootReply,
    FrontendStates,
)
FRONTEND_TO_ROOT = (FrontendLoad, TreeReply, ForeignCall, ForeignReply, RootCall)
