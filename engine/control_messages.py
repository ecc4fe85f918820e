"""Messages between the root and its engines, on their control channels, and what a boot reports.

Plain frozen attrs classes, as those of `messages`, which frontends and engines exchange.
"""

import enum

import attrs

from ..nurseries.processes.watched import Watch, Watched
from ..transports.links.link_keys import LinkKeys
from .config import EngineSettings


class BootPhase(enum.StrEnum):
    """Phase of an engine before READY, in this order; `Progress.phase` of the handshake."""

    START = "start"  # processes and their imports
    LOAD_WEIGHTS = "load weights"
    KV_MEMORY = "KV memory"
    HASH_FILES = "hash files"


@attrs.frozen
class FrontendAddress:
    """Owner of a home (`core.homes`), its rank and term: where its two sockets are bound."""

    rank: int
    term: int
    input_endpoint: str
    output_endpoint: str
    # Addresses for engines of other hosts, and the public key there; "": they do not reach it.
    remote_input: str = ""
    remote_output: str = ""
    server_key: bytes = b""


@attrs.frozen
class FrontendMembership:
    """Frontends that there are; numbered full snapshots, the latest wins."""

    number: int
    frontends: list[FrontendAddress]
    awaited: list[int] = attrs.field(factory=list)  # ranks without one now, that are to have one


@attrs.frozen(kw_only=True)
class EngineInit:
    """INIT's payload for an engine."""

    run_id: str
    rank: int
    epoch: int
    settings: EngineSettings
    membership: FrontendMembership
    # Keys of the engine's host, if frontends are on another: it comes by their remote sockets.
    link_keys: LinkKeys | None = None


@attrs.frozen(kw_only=True)
class EngineReady:
    """READY's payload: limits that frontends admit by, and what a replay must match."""

    kv_blocks: int
    block_tokens: int
    max_model_len: int
    max_num_seqs: int
    vocab_size: int
    numerics_id: str
    bitwise: bool
    settings_digest: str


@attrs.frozen
class WorkersChanged:
    """An engine's worker processes, by pid, with their pidfds beside the message.

    The root holds them: a new epoch on a device starts only when all of these are gone, too.
    """

    pids: list[int]


@attrs.frozen
class Failing:
    """An engine is about to end for `cause`; ending its workers in order may take seconds. By its
    own fault: what it computed may have ended it, unlike a SIGKILL from outside."""

    cause: str
    is_own_fault: bool = True


@attrs.frozen
class Passed:
    """Suspects that ran alone past their position: {content: tokens computed by then}."""

    positions: dict[bytes, int]


@attrs.frozen
class Drain:
    """Serve what is in flight, accept nothing."""


@attrs.frozen
class TreeRequest:
    """Asks a process for its live task tree, its children's included."""

    call_id: int


@attrs.frozen
class TreeReply:
    """A process tree as JSON text (`nurseries.tasks.task_tree.ProcessTree`)."""

    call_id: int
    tree: str


ROOT_TO_ENGINE = (FrontendMembership, Drain, TreeRequest, Watch)
ENGINE_TO_ROOT = (WorkersChanged, TreeReply, Failing, Passed, Watched)
