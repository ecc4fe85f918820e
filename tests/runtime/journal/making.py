"""Requests, messages and journals for the tests of this folder."""

import attrs

from triolet.engine.messages import (
    ENGINE_TO_FRONTEND,
    AddRequest,
    FinishReason,
    RequestOutput,
    StepOutputs,
)
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.journal_memory import NotedMemory
from triolet.runtime.journal.journal import AdmissionNote, Journal
from triolet.runtime.journal.reader import JournalContents, read_journal
from triolet.runtime.journal.records import AdmissionRecord, EngineLife, Placement
from triolet.runtime.journal.writer import JournalLimits, JournalWriter
from triolet.transports.codec import Codec
from triolet.transports.links.channel import Peer

ENGINE = Peer("engine", 3, 7)
CODEC = Codec(*ENGINE_TO_FRONTEND)
SEGMENT_BYTES = 256


def request(request_id: str, *, prompt: int = 3, max_tokens: int = 10) -> AddRequest:
    sampling = SamplingParams(max_tokens=max_tokens, seed=1)
    return AddRequest(
        request_id=request_id, attempt=0, prompt_token_ids=[5] * prompt, sampling=sampling
    )


def admission(
    name: str, *, choices: int = 1, body: bytes = b"{}", prompt: int = 3
) -> AdmissionRecord:
    requests = [request(f"{name}#{number}", prompt=prompt) for number in range(choices)]
    return AdmissionRecord.of(name, requests, body=body, created_at=1_700_000_000)


def placement(request_id: str, attempt: int, peer: Peer | None = ENGINE) -> Placement:
    engine = None if peer is None else EngineLife(peer.rank, peer.epoch)
    return Placement(request_id, attempt, engine, "n", True)


def rows(*rows: tuple[int, int, int]) -> StepOutputs:
    """Of attempt, index, token."""
    return StepOutputs(1, [], *map(list, zip(*rows, strict=True)))


def output(
    request_id: str,
    attempt: int,
    first: int,
    tokens: list[int],
    finish: FinishReason | None = None,
) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        attempt=attempt,
        first_index=first,
        token_ids=tokens,
        finish_reason=finish,
    )


@attrs.define(eq=False)
class Tokens:
    """Where a choice's tokens are: the ledger's list."""

    token_ids: list[int] = attrs.field(factory=list)


def note(name: str, *, is_resumable: bool = True) -> AdmissionNote:
    return AdmissionNote(
        name=name, surface="tests", body=b"{}", created_at=1, is_resumable=is_resumable
    )


def admit(
    journal: Journal,
    name: str,
    choices: int = 1,
    credit: int | None = None,
    *,
    is_resumable: bool = True,
) -> list[Tokens]:
    requests = [(request(f"{name}#{number}"), Tokens()) for number in range(choices)]
    journal.admit(note(name, is_resumable=is_resumable), requests, credit)
    return [tokens for _, tokens in requests]


def open_noted(
    memory: NotedMemory, *, term: int = 1, limits: JournalLimits | None = None
) -> Journal:
    contents = read_journal(memory)
    return Journal.resume(JournalWriter.resume(memory, contents, term, limits), contents)


def frame(message: object) -> bytes:
    return b"".join(map(bytes, CODEC.encode(message)))


def open_writer(
    memory: NotedMemory | None = None, *, term: int = 1, limits: JournalLimits | None = None
) -> tuple[NotedMemory, JournalWriter]:
    """The next life of this memory, a fresh one without."""
    memory = NotedMemory.fresh(SEGMENT_BYTES) if memory is None else memory
    return memory, JournalWriter.resume(memory, read_journal(memory), term, limits)


def tokens_in(contents: JournalContents) -> dict[str, list[int]]:
    """Of each choice."""
    return {
        choice.request.request_id: choice.token_ids
        for stream in contents.streams.streams.values()
        for choice in stream.choices
    }


def say(writer: JournalWriter, message: object, peer: Peer = ENGINE) -> None:
    writer.append_message(peer, frame(message))
