"""Record format of a frontend's journal.

A journal is a run of bytes that grows at its end and is freed at its beginning. Positions in it are
offsets in its memory, and never come back; the memory behind freed ones is given back, so it is
sparse. It is counted in *segments*; the first holds the header alone, and a record may span any
number of the others.

    header    magic (8 bytes) · version (4) · segment bytes (4) · home (4) · crc of these (4),
              begin (8) at byte 64, fill (8) at byte 128, rebuilding (crc of a stream's name (4),
              writer's term (4)) at byte 192: a cache line for each that is written
    record    its head, and a payload: see `envelope`

Records lie between `begin` and `fill`, which each are stored by a single store of eight bytes after
what they announce. Numbers count by one, terms never fall: the root numbers each ownership of a
journal's home by a term. A record of kind MESSAGE is what an engine sent, verbatim, so tokens and
their end are one record, and tokens cost nothing each. Everything else is OWN: one of the classes
here, which the codec has encoded. All is little-endian, checksums are crc32c.

Sans-IO: bytes in, bytes out. `writer` and `reader` use it, `memory` holds it.
"""

import struct
from typing import Final, Self

import attrs
import msgspec
from crc32c import crc32c

from ...engine.messages import ENGINE_TO_FRONTEND, AddRequest, FinishReason, TokenLogprobs
from ...transports.codec import Codec, CodecLimits, MalformedMessage, pack_frames, unpack_frames
from ...transports.links.channel import Peer
from .envelope import JournalSource, RecordKind, engine_peer, load_record

VERSION: Final = 1
MAGIC: Final = b"triolet\x1a"
# Bytes given back at a time; a page-wise one would cost a system call every 4 KiB.
SEGMENT_BYTES: Final = 2**20
_HEADER = struct.Struct("<8sIII")
_CRC = struct.Struct("<I")
HEADER_BYTES: Final = 200
BEGIN_AT, FILL_AT, REBUILDING_AT = 64, 128, 192
_WORDS: Final = struct.Struct("<Q56xQ56xQ")

# Twice what a stream may need at its worst. What a head says beyond it is not even loaded.
PAYLOAD_BYTES_MAX: Final = 2**28
# Sizes of frames, before them.
PACKING_BYTES_MAX: Final = 1024
REBUILDING_TERM_SHIFT = 32


@attrs.frozen
class JournalUnreadable(Exception):
    """This is no journal of this version; `reason` is a sentence."""

    reason: str

    def __str__(self) -> str:
        return self.reason


# ---- header


@attrs.frozen(kw_only=True)
class JournalHeader:
    """Header of a journal. Fields that are written later are as they were when it was read."""

    home: int
    segment_bytes: int = SEGMENT_BYTES
    begin: int = 0
    fill: int = 0
    # The `rebuilding_word` of the stream that was being rebuilt; 0 if none was.
    rebuilding: int = 0

    def fresh(self) -> bytes:
        """The header of an empty journal."""
        head = _HEADER.pack(MAGIC, VERSION, self.segment_bytes, self.home)
        head += _CRC.pack(crc32c(head))
        return head.ljust(BEGIN_AT, b"\0") + _WORDS.pack(self.segment_bytes, self.segment_bytes, 0)

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Decode a journal's first bytes. Raises `JournalUnreadable`."""
        if len(data) < HEADER_BYTES:
            raise JournalUnreadable(f"{len(data)} bytes are no journal")
        magic, version, segment_bytes, home = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise JournalUnreadable("these bytes are no journal")
        if version != VERSION:
            raise JournalUnreadable(f"the journal has format {version}; this reads {VERSION}")
        if _CRC.unpack_from(data, _HEADER.size)[0] != crc32c(data[: _HEADER.size]):
            raise JournalUnreadable("the journal's header is spoiled")
        begin, fill, rebuilding = _WORDS.unpack_from(data, BEGIN_AT)
        if not HEADER_BYTES <= segment_bytes <= begin <= fill:
            raise JournalUnreadable(f"the journal goes from {begin} to {fill}")
        return cls(
            home=home, segment_bytes=segment_bytes, begin=begin, fill=fill, rebuilding=rebuilding
        )


def rebuilding_word(term: int, name: str) -> int:
    """Word of the header while this stream is rebuilt in this term. Never 0.

    The stream goes by its name, since a snapshot moves its base while it is rebuilt.
    """
    return term << REBUILDING_TERM_SHIFT | crc32c(name.encode())


# ---- records
# Those that each request has are not frozen: a frozen class takes three times as long to make.


@attrs.frozen
class EngineLife:
    """An engine's place and life."""

    rank: int
    epoch: int

    @property
    def peer(self) -> Peer:
        return engine_peer(self.rank, self.epoch)


@attrs.define
class Placement:
    """A choice goes to this engine as this attempt; without engine, it waits for one.

    Written before it is sent. `numerics_id` and `bitwise` are what a replay must match.
    """

    request_id: str
    attempt: int
    engine: EngineLife | None
    numerics_id: str = ""
    bitwise: bool = True


@attrs.define(kw_only=True)
class AdmissionRecord:
    """A client's request was taken. Written before its first choice is sent.

    Times are of CLOCK_MONOTONIC, but `created_at`, which clients see. The limits in `requests` are
    settled, seeds are drawn. All choices have one prompt: it is in the first alone.
    """

    name: str
    requests: list[AddRequest] = attrs.field(validator=attrs.validators.min_len(1))
    # Which reader takes the body: of responses, of chats, …
    surface: str = ""
    body: bytes = b""
    created_at: int = 0
    # Whether its client can come back to it before its end.
    is_resumable: bool = True
    # The engine that all choices go to at once, as the attempts that their requests name, and what
    # a replay must match; without, they wait for one.
    engine: EngineLife | None = None
    numerics_id: str = ""
    bitwise: bool = True
    # Up to which index the client takes the tokens of each choice.
    client_credit: int = 0

    def placement_of(self, request: AddRequest) -> Placement:
        """The first one of this choice."""
        where = self.engine, self.numerics_id, self.bitwise
        return Placement(request.request_id, request.attempt, *where)

    def choices(self) -> list[AddRequest]:
        """The requests, each with the prompt."""
        first = self.requests[0]
        return [
            first,
            *(
                attrs.evolve(
                    request,
                    prompt_token_ids=first.prompt_token_ids,
                    prompt_embeds=first.prompt_embeds,
                )
                for request in self.requests[1:]
            ),
        ]

    @classmethod
    def of(cls, name: str, choices: list[AddRequest], **rest: object) -> Self:
        """Make the record of these choices, with the prompt in the first one alone."""
        bare = [attrs.evolve(each, prompt_token_ids=[], prompt_embeds=None) for each in choices[1:]]
        return cls(name=name, requests=[*choices[:1], *bare], **rest)  # type: ignore[arg-type]


@attrs.frozen
class ClientCredit:
    """The client takes a choice's tokens up to this index; a lower one than before is ignored."""

    request_id: str
    credit: int


@attrs.frozen(kw_only=True)
class ChoiceEnd:
    """A choice ended here and not by what its engine said: a stop string, an abort, an error."""

    request_id: str
    finish_reason: FinishReason


@attrs.frozen
class Deletion:
    """Nothing of these is wanted any more: they were deleted, or their time is over."""

    names: list[str]


@attrs.frozen
class RebuildDeath:
    """A life of the frontend ended while it rebuilt this stream. Written by the one after it."""

    name: str


@attrs.define(kw_only=True)
class EngineEnd:
    """How the engine ended a choice, with its last token."""

    finish_reason: FinishReason
    stop_token_id: int | None = None
    error: str = ""
    error_code: str = ""
    complete: bool = False


@attrs.define(kw_only=True)
class ChoiceSnapshot:
    """Summary of a choice's records."""

    attempt: int = 0
    engine: EngineLife | None = None
    numerics_id: str = ""
    bitwise: bool = True
    inexact_from: int | None = None
    token_ids: list[int] = attrs.field(factory=list)
    logprobs: list[TokenLogprobs] = attrs.field(factory=list)
    prompt_logprobs: TokenLogprobs | None = None
    cached_tokens: int = 0
    client_credit: int = 0
    engine_end: EngineEnd | None = None
    end: ChoiceEnd | None = None


@attrs.define(kw_only=True)
class Snapshot:
    """Summary of a stream, which takes the place of every earlier record of it.

    With `said`, the API's own note of how it ended, the stream has ended, and its prompt is not
    needed any more.
    """

    admission: AdmissionRecord
    choices: list[ChoiceSnapshot]
    said: bytes | None = None
    rebuild_deaths: int = 0

    @property
    def name(self) -> str:
        """The stream's."""
        return self.admission.name

    def __attrs_post_init__(self) -> None:
        if len(self.choices) != len(self.admission.requests):
            raise ValueError("as many choices as requests")


@attrs.frozen
class AdmissionHead:
    """Identity of an `AdmissionRecord`'s stream."""

    name: str
    surface: str = ""


@attrs.frozen(kw_only=True)
class SnapshotHead:
    """Part of a `Snapshot` that is read before its stream is needed: a twentieth of the cost."""

    admission: AdmissionHead
    said: bytes | None = None
    rebuild_deaths: int = 0


@attrs.frozen
class NamedValue:
    """Value that an API keeps beside streams; a later one of this name takes its place."""

    name: str
    value: bytes


OwnRecord = (
    AdmissionRecord
    | Placement
    | ClientCredit
    | ChoiceEnd
    | Deletion
    | Snapshot
    | RebuildDeath
    | NamedValue
)
# A record's class goes by its place here: a new one is appended.
_OWN: Final = Codec(
    *(AdmissionRecord, Placement, ClientCredit, ChoiceEnd, Deletion, Snapshot),
    RebuildDeath,
    NamedValue,
    limits=CodecLimits(bytes_max=PAYLOAD_BYTES_MAX - PACKING_BYTES_MAX),
)
_MESSAGES: Final = Codec(*ENGINE_TO_FRONTEND)
# The beginning of nearly every record, as `pack_frames` has it.
_ONE_FRAME: Final = struct.Struct("<IQ")
# Before the fields of a snapshot in one frame.
_SNAPSHOT_BEGIN: Final = bytes([_OWN.message_types.index(Snapshot)])
_SNAPSHOT_HEAD: Final = msgspec.msgpack.Decoder(SnapshotHead)
assert not _MESSAGES.has_arrays, "a message's record is its first frame: it must have no other"


def encode_own(record: OwnRecord) -> bytes:
    """A record's payload. Raises `MessageTooLarge`."""
    frames = _OWN.encode(record)
    if len(frames) == 1:
        return _ONE_FRAME.pack(1, len(frames[0])) + frames[0]
    return b"".join(pack_frames(frames))


def decode_payload(kind: int, payload: memoryview) -> object:
    """The message or own record. Raises `MalformedMessage`."""
    match kind:
        case RecordKind.MESSAGE:
            return _MESSAGES.decode([payload])
        case RecordKind.OWN:
            return _OWN.decode(unpack_frames(payload))
        case _:
            raise MalformedMessage(f"a record of kind {kind}")


def ended_head(kind: int, payload: memoryview) -> SnapshotHead | None:
    """Head of an ended stream's snapshot; None for a record that has to be decoded whole."""
    begin = _ONE_FRAME.size
    if kind != RecordKind.OWN or payload[begin : begin + 1] != _SNAPSHOT_BEGIN:
        return None
    try:
        head = _SNAPSHOT_HEAD.decode(payload[begin + 1 :])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None  # as its decoding will say
    return None if head.said is None else head


def load_snapshot(source: JournalSource, position: int, size: int) -> Snapshot:
    """The snapshot that was written there. Raises `JournalUnreadable`."""
    try:
        snapshot = decode_payload(RecordKind.OWN, load_record(source, position, size))
    except (OSError, MalformedMessage) as error:
        raise JournalUnreadable(str(error)) from error
    assert isinstance(snapshot, Snapshot)
    return snapshot
