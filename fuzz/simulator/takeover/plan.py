"""Clients' connections, and deaths of the frontend that serves them, as events of a plan."""

import enum

import attrs

# A process that reads a fatal request is dead so soon.
FATAL_S = 0.05


class Kind(enum.StrEnum):
    """What a client does on its connection."""

    RESPONSES = "event stream of a response"
    CHAT = "event stream of a chat"
    WHOLE = "whole answers"
    PIECES = "request in pieces"
    PIPELINE = "pipelined requests"
    LARGE = "large bodies"
    LANES = "lanes"
    CREDIT = "lanes with credit"
    STUCK = "client that reads nothing"
    FATAL = "request that ends its process"


@attrs.frozen(kw_only=True)
class Talk:
    """One client and its connection."""

    name: str
    kind: Kind
    seed: int
    tokens: int
    at_s: float = 0.0
    # Between two reads.
    pause_s: float = 0.0
    # What the kernel takes of a write that the client has not acknowledged.
    buffer_bytes: int = 2**18
    read_bytes: int = 2**16
    # What is sent is cut into pieces of this size, with pauses.
    piece_bytes: int = 2**16


@attrs.frozen(kw_only=True)
class Death:
    """The next life of the frontend crashes at this store or system call, counted when it has
    served for so long.
    """

    effects: float
    after_s: float = 0.0
    # Half of the store is made at which it dies.
    is_torn: bool = False
