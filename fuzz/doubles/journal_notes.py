"""Notes of the journal's fuzzer: each stream as it should be read, kept without the journal."""

from collections.abc import Mapping, Set
from random import Random

import attrs

from ...engine.messages import (
    ENGINE_TO_FRONTEND,
    AddRequest,
    FinishReason,
    RequestOutput,
    TokenLogprobs,
)
from ...runtime.journal.envelope import RecordKind
from ...runtime.journal.records import (
    AdmissionRecord,
    ChoiceEnd,
    ChoiceSnapshot,
    ClientCredit,
    Deletion,
    EngineEnd,
    EngineLife,
    NamedValue,
    Placement,
    RebuildDeath,
    Snapshot,
    encode_own,
)
from ...runtime.journal.stream import JournalChoice, JournalStream
from ...runtime.journal.streams import JournalStreams
from ...transports.codec import Codec
from ...transports.links.channel import Peer
from ..drawing import draw_message

MESSAGES = Codec(*ENGINE_TO_FRONTEND)
LOGPROBS = TokenLogprobs(1, b"abcd", b"efgh", b"ijkl")
# A choice as it is compared, and streams by name.
Seen = tuple[object, ...]
Truth = dict[str, Seen]


@attrs.define(eq=False)
class ChoiceNote:
    """Choice as it should be read."""

    request: AddRequest
    tokens: list[int] = attrs.field(factory=list)
    attempt: int = 0
    peer: Peer | None = None
    numerics: str = ""
    inexact: int | None = None
    logprobs: int = 0
    cached: int = 0
    credit: int = 0
    finish: FinishReason | None = None
    end: FinishReason | None = None

    def seen(self, *, has_ended: bool) -> Seen:
        """Tuple to compare; the prompt goes with its stream's end."""
        request = self.request
        prompt = 0 if has_ended else len(request.prompt_token_ids)
        return (
            *(request.request_id, prompt, self.attempt, self.peer),
            *(self.numerics, self.inexact),
            *(tuple(self.tokens), self.logprobs, self.cached, self.credit, self.finish, self.end),
        )

    def snapshot(self) -> ChoiceSnapshot:
        """Snapshot as the owner would write it."""
        peer, finish, end = self.peer, self.finish, self.end
        return ChoiceSnapshot(
            attempt=self.attempt,
            engine=None if peer is None else EngineLife(peer.rank, peer.epoch),
            numerics_id=self.numerics,
            inexact_from=self.inexact,
            token_ids=list(self.tokens),
            logprobs=[LOGPROBS] * self.logprobs,
            cached_tokens=self.cached,
            client_credit=self.credit,
            engine_end=None if finish is None else EngineEnd(finish_reason=finish),
            end=None
            if end is None
            else ChoiceEnd(request_id=self.request.request_id, finish_reason=end),
        )

    def place(self, attempt: int, peer: Peer | None, numerics: str) -> None:
        """Place the choice with this engine; none has no numerics."""
        self.attempt, self.peer = attempt, peer
        if peer is not None:
            differs = bool(self.numerics) and numerics != self.numerics
            self.inexact = len(self.tokens) if differs and self.inexact is None else self.inexact
            self.numerics = numerics

    def output(self, first: int, tokens: list[int]) -> RequestOutput:
        """Output as the engine sends it."""
        return RequestOutput(
            request_id=self.request.request_id,
            attempt=self.attempt,
            first_index=first,
            token_ids=tokens,
        )

    def finish_here(self, reason: FinishReason) -> None:
        """By the frontend."""
        self.end, self.peer = reason, None


@attrs.define(eq=False)
class StreamNote:
    """Stream as it should be read."""

    admission: AdmissionRecord
    choices: list[ChoiceNote]
    # The latest admission's or snapshot's place and bytes.
    base: int
    base_bytes: int
    said: bytes | None = None
    # Terms of the lives that died while they rebuilt it.
    deaths: set[int] = attrs.field(factory=set)

    def seen(self) -> Seen:
        """Tuple to compare."""
        ended = self.said is not None
        choices = (choice.seen(has_ended=ended) for choice in self.choices)
        return (self.said, len(self.deaths), *choices)

    def snapshot(self) -> Snapshot:
        """Snapshot as the owner would write it."""
        return Snapshot(
            admission=self.admission,
            choices=[choice.snapshot() for choice in self.choices],
            said=self.said,
            rebuild_deaths=len(self.deaths),
        )

    def end(self, said: bytes) -> None:
        """By the frontend, with all that its choices have."""
        self.said = said
        for choice in self.choices:
            choice.peer = None

    @property
    def is_one_record(self) -> bool:
        """Whether the record at its base has all of it."""
        return self.said is not None and not self.deaths


@attrs.define(eq=False)
class ValueNote:
    """Value beside the streams, which has no choices, as it should be read."""

    record: NamedValue
    base: int
    base_bytes: int
    choices: tuple[ChoiceNote, ...] = ()
    deaths: Set[int] = frozenset()

    def seen(self) -> Seen:
        """Tuple to compare."""
        return (self.record.value,)

    def snapshot(self) -> NamedValue:
        """Record as the owner would write it."""
        return self.record

    @property
    def is_one_record(self) -> bool:
        """Whether the record at its base has all of it."""
        return True


def truth_of(streams: JournalStreams) -> Truth:
    """Streams and values that were read, to compare."""
    seen = {name: seen_of(stream) for name, stream in streams.streams.items()}
    return seen | {name: (each.record.value,) for name, each in streams.values.items()}


def seen_of(stream: JournalStream) -> Seen:
    """Stream that was read, to compare."""
    return (stream.said, stream.rebuild_deaths, *map(_seen_of_choice, stream.choices))


def _seen_of_choice(choice: JournalChoice) -> Seen:
    request, end, finish = choice.request, choice.end, choice.engine_end
    return (
        *(request.request_id, len(request.prompt_token_ids), choice.attempt, choice.peer),
        *(choice.numerics.numerics_id, choice.numerics.inexact_from),
        *(tuple(choice.token_ids), len(choice.logprobs), choice.cached_tokens),
        *(choice.client_credit, None if finish is None else finish.finish_reason),
        None if end is None else end.finish_reason,
    )


def notes_of(
    streams: JournalStreams, deaths: Mapping[str, Set[int]]
) -> dict[str, StreamNote | ValueNote]:
    """Notes of a life whose last records were lost: what was read, and judged before."""
    values = {
        name: ValueNote(each.record, each.base, each.base_bytes)
        for name, each in streams.values.items()
    }
    return values | {
        name: StreamNote(
            admission=stream.admission,
            choices=list(map(_note_of, stream.choices)),
            base=stream.base,
            base_bytes=stream.base_bytes,
            said=stream.said,
            deaths=set(deaths[name]),
        )
        for name, stream in streams.streams.items()
    }


def _note_of(choice: JournalChoice) -> ChoiceNote:
    return ChoiceNote(
        request=choice.request,
        tokens=list(choice.token_ids),
        attempt=choice.attempt,
        peer=choice.peer,
        numerics=choice.numerics.numerics_id,
        inexact=choice.numerics.inexact_from,
        logprobs=len(choice.logprobs),
        cached=choice.cached_tokens,
        credit=choice.client_credit,
        finish=None if choice.engine_end is None else choice.engine_end.finish_reason,
        end=None if choice.end is None else choice.end.finish_reason,
    )


def draw_payload(chance: Random, is_own: bool) -> tuple[RecordKind, bytes]:
    """A payload that is none of the notes: any message or record there is."""
    if not is_own:
        message = draw_message(chance, chance.choice(ENGINE_TO_FRONTEND))
        return RecordKind.MESSAGE, b"".join(map(bytes, MESSAGES.encode(message)))
    admission = draw_message(chance, AdmissionRecord)
    match chance.randrange(4):
        case 0:
            return RecordKind.OWN, encode_own(admission)
        case 1:
            choices = [draw_message(chance, ChoiceSnapshot) for _ in admission.requests]
            snapshot = Snapshot(admission=admission, choices=choices, said=b"")
            return RecordKind.OWN, encode_own(snapshot)
        case _:
            others = (
                Placement,
                ClientCredit,
                ChoiceEnd,
                Deletion,
                RebuildDeath,
                NamedValue,
            )
            return RecordKind.OWN, encode_own(draw_message(chance, chance.choice(others)))
