"""Streams of a journal: what its records say of each client's request, applied one by one.

A *stream* is one client's request with its choices. Engines' messages are judged as the frontend's
ledger judges them (`judge`), so that verbatim frames, with all that the ledger refused, come to the
same tokens: each at exactly the next index, of the present attempt, from the engine that has it.
Records of streams that the journal does not (any more) begin with are passed over and counted.

Sans-IO: records in, state out. `reader` reads them, adoption uses what is here.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial

import attrs

from ...engine.errors import NOT_BEGUN
from ...engine.messages import StepOutputs
from ...transports.links.channel import Peer
from .judgement import judge
from .records import (
    AdmissionRecord,
    ChoiceEnd,
    ClientCredit,
    Deletion,
    NamedValue,
    Placement,
    RebuildDeath,
    Snapshot,
    SnapshotHead,
)
from .stream import JournalChoice, JournalStream, choices_of


@attrs.frozen(eq=False)
class JournalValue:
    """A value that its API keeps, and where its record lies."""

    record: NamedValue
    base: int
    base_bytes: int


@attrs.define(eq=False)
class JournalStreams:
    """Streams of a journal, and its values, by name, each in the order of their bases."""

    streams: dict[str, JournalStream] = attrs.field(factory=dict, init=False)
    values: dict[str, JournalValue] = attrs.field(factory=dict, init=False)
    # Records, or parts of messages, that did not count.
    passed_over: Counter[str] = attrs.field(factory=Counter, init=False)
    # Choices of streams that have not ended, by request id; those that an engine has also by that
    # and attempt.
    _choices: dict[str, JournalChoice] = attrs.field(factory=dict, init=False)
    _placed: dict[Peer, dict[int, JournalChoice]] = attrs.field(factory=dict, init=False)

    def choice(self, request_id: str) -> JournalChoice | None:
        """The choice of this request, over or not; None once its stream has ended."""
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

    def handle_ended(
        self,
        head: SnapshotHead,
        base: int,
        base_bytes: int,
        load: Callable[[int, int], Snapshot],
    ) -> None:
        """The snapshot of a stream that has ended, where it lies, and what loads all of it."""
        name = head.admission.name
        if name in self.streams:
            self._delete(name)
        elif name in self.values:
            self.passed_over["admission twice"] += 1
            return
        ended = JournalStream(head.admission, [], base, base_bytes, head.said, head.rebuild_deaths)
        ended.load = partial(load, base, base_bytes)
        self._keep(ended)

    def handle_message(self, sender: Peer, message: object) -> None:
        """Apply an engine's message, the ledger's refusals included."""
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
            elif output.error_code in NOT_BEGUN:
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
        choices = [choice for stream in self.streams.values() for choice in stream.live_choices]
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
        self.streams[stream.name] = stream
        self._choices.update((each.request.request_id, each) for each in stream.live_choices)

    def _is_new(self, record: AdmissionRecord, ids: list[str]) -> bool:
        known = self._choices.keys() & ids
        is_named = record.name in self.streams or record.name in self.values
        return not is_named and len(set(ids)) == len(ids) and not known

    def _handle_snapshot(self, record: Snapshot, base: int, base_bytes: int) -> None:
        """Replace all earlier records of a stream, whether they are still there or not."""
        name = record.admission.name
        if name in self.streams:
            self._delete(name)
        choices = choices_of(record)
        if not self._is_new(record.admission, [each.request.request_id for each in choices]):
            self.passed_over["admission twice"] += 1
            return
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
        for choice in self.streams.pop(name).live_choices:
            self._displace(choice)
            del self._choices[choice.request.request_id]
