"""Streams of a journal: what its records say of each client's request, applied one by one.

A *stream* is one client's request with its choices. Engines' messages are judged as the frontend's
ledger judges them (`judge`), so that verbatim frames, with all that the ledger refused, come to the
same tokens: each at exactly the next index, of the present attempt, from the engine that has it.
Records of streams that the journal does not (any more) begin with are passed over and counted.

Sans-IO: records in, state out. `reader` reads them, adoption uses what is here.
"""

from collections import Counter

import attrs

from ...engine.errors import EngineDraining
from ...engine.messages import AddRequest, RequestOutput, StepOutputs, TokenLogprobs
from ...transports.links.channel import Peer
from .judgement import judge
from .records import (
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
)


@attrs.define(eq=False)
class JournalChoice:
    """One choice of a stream, as far as its records go."""

    request: AddRequest
    token_ids: list[int] = attrs.field(factory=list)
    # 0 and None before the first placement; no engine either once it waits for another, or ended.
    attempt: int = 0
    peer: Peer | None = None
    numerics_id: str = ""
    bitwise: bool = True
    # How many tokens it had when an engine with another numerics id first went on with it, if any.
    inexact_from: int | None = None
    # Of the tokens in order, where they were asked for.
    logprobs: list[TokenLogprobs] = attrs.field(factory=list)
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
        """It goes to this engine, or waits for one."""
        self.attempt, self.peer = record.attempt, None
        if record.engine is None:
            return
        self.peer = record.engine.peer
        if self.inexact_from is None and self.numerics_id not in ("", record.numerics_id):
            self.inexact_from = len(self.token_ids)
        self.numerics_id, self.bitwise = record.numerics_id, record.bitwise

    def handle_output(self, output: RequestOutput) -> None:
        """An output that counts."""
        self.token_ids.extend(output.token_ids)
        self.note(output)

    def note(self, output: RequestOutput) -> None:
        """All of an output that counts but its tokens, which are in the list."""
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
        """All of it."""
        peer = self.peer
        return ChoiceSnapshot(
            attempt=self.attempt,
            engine=None if peer is None else EngineLife(peer.rank, peer.epoch),
            numerics_id=self.numerics_id,
            bitwise=self.bitwise,
            inexact_from=self.inexact_from,
            token_ids=list(self.token_ids),
            logprobs=list(self.logprobs),
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
        """As its admission says, before it is placed; its tokens are in this list."""
        return cls(request, token_ids, client_credit=record.client_credit)

    @classmethod
    def of(cls, request: AddRequest, said: ChoiceSnapshot) -> "JournalChoice":
        """As a snapshot says."""
        return cls(
            request=request,
            token_ids=list(said.token_ids),
            attempt=said.attempt,
            peer=None if said.engine is None else said.engine.peer,
            numerics_id=said.numerics_id,
            bitwise=said.bitwise,
            inexact_from=said.inexact_from,
            logprobs=list(said.logprobs),
            prompt_logprobs=said.prompt_logprobs,
            cached_tokens=said.cached_tokens,
            client_credit=said.client_credit,
            engine_end=said.engine_end,
            end=said.end,
        )


@attrs.define(eq=False)
class JournalStream:
    """One client's request."""

    admission: AdmissionRecord
    choices: list[JournalChoice]
    # Where its latest admission or snapshot begins, and the bytes of that: all before is not used.
    base: int = 0
    base_bytes: int = 0
    # What was said of its end; None before it.
    said: bytes | None = None
    # Lives of the frontend that ended while they rebuilt it.
    rebuild_deaths: int = 0

    def handle_end(self, said: bytes) -> None:
        """It has ended: no choice goes on, so that its prompt is not needed any more."""
        self.said = said
        for choice in self.choices:
            choice.stream_ended, choice.peer = True, None
            # In place: the first one's is the admission's.
            choice.request.prompt_token_ids, choice.request.prompt_embeds = [], None

    def snapshot(self) -> Snapshot:
        """All of it, as one record."""
        return Snapshot(
            admission=self.admission,
            choices=[choice.snapshot() for choice in self.choices],
            said=self.said,
            rebuild_deaths=self.rebuild_deaths,
        )


@attrs.frozen(eq=False)
class JournalValue:
    """A value that its API keeps, and where its record lies."""

    record: NamedValue
    base: int
    base_bytes: int


@attrs.define(eq=False)
class JournalStreams:
    """All streams of a journal, and its values, by name, each in the order of their bases."""

    streams: dict[str, JournalStream] = attrs.field(factory=dict, init=False)
    values: dict[str, JournalValue] = attrs.field(factory=dict, init=False)
    # Records, or parts of messages, that did not count.
    passed_over: Counter[str] = attrs.field(factory=Counter, init=False)
    # The same choices by request id, and those that an engine has by that and attempt.
    _choices: dict[str, JournalChoice] = attrs.field(factory=dict, init=False)
    _placed: dict[Peer, dict[int, JournalChoice]] = attrs.field(factory=dict, init=False)

    def choice(self, request_id: str) -> JournalChoice | None:
        """The choice of this request, over or not."""
        return self._choices.get(request_id)

    def handle_own(self, record: object, base: int, base_bytes: int) -> None:
        """A record of the frontend, and where it lies."""
        match record:
            case AdmissionRecord():
                self._handle_admission(record, base, base_bytes)
            case Snapshot():
                self._handle_snapshot(record, base, base_bytes)
            case Placement(request_id=request_id):
                choice = self._live(request_id)
                if choice is not None:
                    self._place(choice, record)
            case ClientCredit(request_id=request_id, credit=credit):
                choice = self._live(request_id)
                if choice is not None:
                    choice.client_credit = max(choice.client_credit, credit)
            case ChoiceEnd(request_id=request_id):
                choice = self._live(request_id)
                if choice is not None:
                    choice.end = record
                    self._displace(choice)
            case RebuildDeath(name=name) if name in self.streams:
                self.streams[name].rebuild_deaths += 1
            case Deletion(names=names):
                for name in names:
                    self._forget(name)
            case NamedValue(name=name) if name not in self.streams:
                self.values.pop(name, None)
                self.values[name] = JournalValue(record, base, base_bytes)
            case _:
                self.passed_over[type(record).__name__] += 1

    def handle_message(self, sender: Peer, message: object) -> None:
        """What an engine sent, the ledger's refusals included."""
        if not isinstance(message, StepOutputs):
            self.passed_over[type(message).__name__] += 1
            return
        choices = map(self._placed.get(sender, {}).get, message.attempts)
        rows = zip(choices, message.indices, message.token_ids, strict=True)
        for choice, index, token_id in rows:
            if choice is None or index != len(token_ids := choice.token_ids):
                self.passed_over["row"] += 1
                continue
            token_ids.append(token_id)
        for output in message.outputs:
            choice = self._choices.get(output.request_id)
            if choice is not None and choice.is_over:
                choice = None
            if judge(choice, sender, output) is not None or choice is None:
                self.passed_over["output"] += 1
            elif output.error_code == EngineDraining.code:
                self._displace(choice)
            else:
                choice.handle_output(output)
                if choice.is_over:
                    self._displace(choice)

    def check_invariants(self) -> None:
        """The indexes agree with the streams, which are in the order of their bases."""
        bases = [stream.base for stream in self.streams.values()]
        assert bases == sorted(set(bases))
        others = [value.base for value in self.values.values()]
        assert others == sorted(set(others) - set(bases))
        choices = [choice for stream in self.streams.values() for choice in stream.choices]
        assert {id(choice) for choice in choices} == set(map(id, self._choices.values()))
        placed = {
            (peer, attempt): choice
            for peer, found in self._placed.items()
            for attempt, choice in found.items()
        }
        for choice in choices:
            assert self._choices[choice.request.request_id] is choice
            assert choice.peer is None or not choice.is_over
            if choice.peer is not None:
                assert placed.pop((choice.peer, choice.attempt)) is choice
        assert not placed

    def _live(self, request_id: str) -> JournalChoice | None:
        choice = self._choices.get(request_id)
        if choice is None or choice.is_over:
            self.passed_over["late"] += 1
            return None
        return choice

    def _handle_admission(self, record: AdmissionRecord, base: int, base_bytes: int) -> None:
        requests = record.choices()
        if not self._is_new(record, [request.request_id for request in requests]):
            self.passed_over["admission twice"] += 1
            return
        choices = [
            JournalChoice.admitted(record, each, list(each.output_token_ids)) for each in requests
        ]
        self._keep(JournalStream(record, choices, base, base_bytes))
        if record.engine is not None:
            for choice in choices:
                self._place(choice, record.placement_of(choice.request))

    def _keep(self, stream: JournalStream) -> None:
        self.streams[stream.admission.name] = stream
        self._choices.update((choice.request.request_id, choice) for choice in stream.choices)

    def _is_new(self, record: AdmissionRecord, ids: list[str]) -> bool:
        known = self._choices.keys() & ids
        is_named = record.name in self.streams or record.name in self.values
        return not is_named and len(set(ids)) == len(ids) and not known

    def _handle_snapshot(self, record: Snapshot, base: int, base_bytes: int) -> None:
        """It takes the place of all that came before, whether that is still there or not."""
        name = record.admission.name
        if name in self.streams:
            self._delete(name)
        requests = record.admission.choices()
        if not self._is_new(record.admission, [request.request_id for request in requests]):
            self.passed_over["admission twice"] += 1
            return
        choices = list(map(JournalChoice.of, requests, record.choices))
        stream = JournalStream(record.admission, choices, base, base_bytes)
        stream.rebuild_deaths = record.rebuild_deaths
        if record.said is not None:
            stream.handle_end(record.said)
        self._keep(stream)
        for choice in choices:
            peer, choice.peer = choice.peer, None
            if peer is not None and not choice.is_over:
                self._put(choice, peer)

    def _place(self, choice: JournalChoice, record: Placement) -> None:
        self._displace(choice)
        choice.handle_placed(record)
        if choice.peer is not None:
            self._put(choice, choice.peer)

    def _put(self, choice: JournalChoice, peer: Peer) -> None:
        """An attempt names one choice: the later one, if a record says otherwise."""
        placed = self._placed.setdefault(peer, {})
        before = placed.get(choice.attempt)
        if before is not None:
            self._displace(before)
            placed = self._placed.setdefault(peer, {})
        placed[choice.attempt] = choice
        choice.peer = peer

    def _displace(self, choice: JournalChoice) -> None:
        if choice.peer is None:
            return
        placed = self._placed[choice.peer]
        del placed[choice.attempt]
        if not placed:
            del self._placed[choice.peer]
        choice.peer = None

    def _forget(self, name: str) -> None:
        if name in self.streams:
            self._delete(name)
        elif self.values.pop(name, None) is None:
            self.passed_over[Deletion.__name__] += 1

    def _delete(self, name: str) -> None:
        for choice in self.streams.pop(name).choices:
            self._displace(choice)
            del self._choices[choice.request.request_id]
