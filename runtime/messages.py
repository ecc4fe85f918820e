"""Messages between the root and its frontends, on the control channel (after the handshake).

Plain frozen attrs classes, as `engine.messages` are. Must not know sockets or HTTP: a connection
crosses as a file descriptor beside `PassConnection`.
"""

import attrs

from ..engine.messages import Drain, EngineReady, TreeReply, TreeRequest
from .health import EngineState


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


@attrs.frozen(kw_only=True)
class FrontendInit:
    """INIT's payload for a frontend; `settings` is JSON text that `api` understands."""

    run_id: str
    rank: int
    epoch: int
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


ROOT_TO_FRONTEND = (EngineMembership, PassConnection, Drain, TreeRequest)
FRONTEND_TO_ROOT = (FrontendLoad, TreeReply)
