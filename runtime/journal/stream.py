"""Stream of a journal: one client's request with its choices, as far as its records go.

Sans-IO: `streams` applies records to it, the frontend's own journal keeps it for snapshots, and a
successor goes on with it.
"""

from collections.abc import Callable

import attrs

from ...engine.messages import AddRequest, RequestOutput, TokenLogprobs
from ...transports.links.channel import Peer
from .logprob_columns import LogprobColumns
from .records import (
    AdmissionHead,
    AdmissionRecord,
    ChoiceEnd,
    ChoiceSnapshot,
    EngineEnd,
    EngineLife,
    Placement,
    Snapshot,
)


@attrs.define
class ChoiceNumerics:
    """Numerics of a choice's tokens, see `ledger_entry.Numerics`: of the latest engine."""

    numerics_id: str = ""
    bitwise: bool = True
    # How many tokens it had when an engine with another numerics id first went on with it, if any.
    inexact_from: int | None = None

    def handle_placed(self, record: Placement, tokens: int) -> None:
        """Note that an engine goes on behind so many tokens."""
        if self.inexact_from is None and self.numerics_id not in ("", record.numerics_id):
            self.inexact_from = tokens
        self.numerics_id, self.bitwise = record.numerics_id, record.bitwise


@attrs.define(eq=False)
class JournalChoice:
    """Choice of a stream, as far as its records go."""

    request: AddRequest
    token_ids: list[int] = attrs.field(factory=list)
    # 0 and None before the first placement; no engine either once it waits for another, or ended.
    attempt: int = 0
    peer: Peer | None = None
    numerics: ChoiceNumerics = attrs.field(factory=ChoiceNumerics)
    # Logprobs of the tokens in order, if they were asked for.
    logprobs: LogprobColumns = attrs.field(factory=LogprobColumns)
    prompt_logprobs: TokenLogprobs | None = None
    cached_tokens: int = 0  # as the first engine said
    client_credit: int = 0
    engine_end: EngineEnd | None = None
    end: ChoiceEnd | None = None
    # Whether its records are written as they come, or all at its end.
    is_written: bool = True
    # The stream ended, whether this choice did or not.
    stream_ended: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.stream_ended or self.engine_end is not None or self.end is not None

    def handle_placed(self, record: Placement) -> None:
        """Note that the choice goes to this engine, or waits for one."""
        self.attempt, self.peer = record.attempt, None
        if record.engine is None:
            return
        self.peer = record.engine.peer
        self.numerics.handle_placed(record, len(self.token_ids))

    def handle_output(self, output: RequestOutput) -> None:
        """An output that counts."""
        self.token_ids.extend(output.token_ids)
        self.note(output)

    def note(self, output: RequestOutput) -> None:
        """Note an output that counts, but for its tokens, which are in the list."""
        if output.first_index == 0 and output.token_ids:
            self.cached_tokens = output.cached_tokens
        if output.logprobs is not None:
            self.logprobs.append(output.logprobs)
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        if output.finish_reason is not None:
            self.engine_end = EngineEnd(
                finish_reason=output.finish_reason,
                stop_token_id=output.stop_token_id,
                error=output.error,
                error_code=output.error_code,
                complete=output.complete,
            )

    def snapshot(self) -> ChoiceSnapshot:
        """Summary of the choice."""
        peer = self.peer
        return ChoiceSnapshot(
            attempt=self.attempt,
            engine=None if peer is None else EngineLife(peer.rank, peer.epoch),
            numerics_id=self.numerics.numerics_id,
            bitwise=self.numerics.bitwise,
            inexact_from=self.numerics.inexact_from,
            token_ids=list(self.token_ids),
            logprobs=[part for _, part in self.logprobs.parts()],
            prompt_logprobs=self.prompt_logprobs,
            cached_tokens=self.cached_tokens,
            client_credit=self.client_credit,
            engine_end=self.engine_end,
            end=self.end,
        )

    @classmethod
    def admitted(
        cls, record: AdmissionRecord, request: AddRequest, token_ids: list[int]
    ) -> "JournalChoice":
        """Make a choice as admitted, before it is placed; its tokens are in this list."""
        return cls(request, token_ids, client_credit=record.client_credit)

    @classmethod
    def of(cls, request: AddRequest, said: ChoiceSnapshot) -> "JournalChoice":
        """Make a choice from a snapshot."""
        return cls(
            request=request,
            token_ids=list(said.token_ids),
            attempt=said.attempt,
            peer=None if said.engine is None else said.engine.peer,
            numerics=ChoiceNumerics(said.numerics_id, said.bitwise, said.inexact_from),
            logprobs=LogprobColumns.of(said.logprobs),
            prompt_logprobs=said.prompt_logprobs,
            cached_tokens=said.cached_tokens,
            client_credit=said.client_credit,
            engine_end=said.engine_end,
            end=said.end,
        )


@attrs.define(eq=False)
class JournalStream:
    """Request of a client; of one that has ended, all but name and end may be loaded later."""

    _admission: AdmissionRecord | AdmissionHead
    _choices: list[JournalChoice]
    # The latest admission's or snapshot's begin and bytes: everything before is not used.
    base: int = 0
    base_bytes: int = 0
    # The API's note of the end; None before it.
    said: bytes | None = None
    # Lives of the frontend that ended while they rebuilt it.
    rebuild_deaths: int = 0
    # Loads the record that has all of it; None once it was. Raises `JournalUnreadable`.
    load: Callable[[], Snapshot] | None = None

    @property
    def name(self) -> str:
        """Name that the API has given."""
        return self._admission.name

    @property
    def surface(self) -> str:
        """Surface of the API that the client asked."""
        return self._admission.surface

    @property
    def admission(self) -> AdmissionRecord:
        """Admission of the stream. Raises `JournalUnreadable`."""
        self._load()
        assert isinstance(self._admission, AdmissionRecord)
        return self._admission

    @property
    def choices(self) -> list[JournalChoice]:
        """Choices of the stream. Raises `JournalUnreadable`."""
        self._load()
        return self._choices

    @property
    def live_choices(self) -> list[JournalChoice]:
        """Choices until the stream has ended, and none then: nothing more is said of them."""
        return self._choices if self.said is None else []

    def _load(self) -> None:
        if self.load is None or self.said is None:
            return
        snapshot = self.load()
        self._admission, self._choices, self.load = snapshot.admission, choices_of(snapshot), None
        self.handle_end(self.said)

    def handle_end(self, said: bytes) -> None:
        """Note the stream's end: no choice goes on, so that its prompt is not needed any more."""
        self.said = said
        for choice in self._choices:
            choice.stream_ended, choice.peer = True, None
            # In place: the first one's is the admission's.
            choice.request.prompt_token_ids, choice.request.prompt_embeds = [], None

    def snapshot(self) -> Snapshot:
        """Summary of the stream, as one record."""
        return Snapshot(
            admission=self.admission,
            choices=[choice.snapshot() for choice in self.choices],
            said=self.said,
            rebuild_deaths=self.rebuild_deaths,
        )


def choices_of(snapshot: Snapshot) -> list[JournalChoice]:
    """Choices of a snapshot."""
    return list(map(JournalChoice.of, snapshot.admission.choices(), snapshot.choices))
