"""History of one stream as its client saw it, and what is wrong with it.

Sans-IO: wire events in with `now`, a record out. The rules checked here need no knowledge of any
fault: indices without gap or repeat, one terminal event, accounts that agree with what was seen.
What a stream should have held, and how it was allowed to end, is `checkers`' affair.
"""

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from ...api.openai.response_id import frontend_of
from .fault_plan import Transport

# The delta of token k (from 1) has the number 8 k; what the end completes, one more.
NUMBERS_OF_TOKEN = 8
# A longer silence is a pause: twice what tokens may wait for each other (`load.MERGE_MS`).
PAUSE_S = 0.2
DELTA = "response.output_text.delta"
TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})


class Ending(enum.StrEnum):
    """How a stream was over for its client."""

    FINISHED = "finished"  # the engine ended it: length or stop
    CANCELLED = "cancelled"
    FAILED = "failed"  # a typed error after it was admitted
    REFUSED = "refused"  # a typed error instead of a stream
    LOST = "lost"  # the connection ended without a last event
    LEFT = "left"  # the client went away itself
    HANGING = "hanging"  # nothing came for longer than anything may take


@attrs.frozen
class Violation:
    """An invariant that did not hold, by its number, with what shows it."""

    invariant: str
    evidence: str


@attrs.define(eq=False)
class StreamHistory:
    """One stream. `see` takes its events; `lose`, `leave` and `give_up` the ends without one.

    That of a client that comes back (`comes_back`) goes on over other connections once it has
    begun.
    """

    name: str
    script: int
    transport: Transport
    started_s: float
    # When its connection was opened, which may have carried others before it.
    connected_s: float = attrs.Factory(lambda self: self.started_s, takes_self=True)
    comes_back: bool = attrs.field(default=False, kw_only=True)
    # Whose it is: with another it can be neither read nor deleted.
    key: str = attrs.field(default="", kw_only=True)
    response_id: str = attrs.field(default="", init=False)
    token_ids: list[int] = attrs.field(factory=list, init=False)
    logprobs: list[float] = attrs.field(factory=list, init=False)
    ending: Ending | None = attrs.field(default=None, init=False)
    # Of the error event, or why the connection was lost.
    code: str = attrs.field(default="", init=False)
    message: str = attrs.field(default="", init=False)
    ended_s: float = attrs.field(default=0.0, init=False)
    # The longest time between two events, and when it was over.
    gap_s: float = attrs.field(default=0.0, init=False)
    gap_ended_s: float = attrs.field(default=0.0, init=False)
    # When nothing came for longer than `PAUSE_S`, and when its client came back.
    pauses: list[tuple[float, float]] = attrs.field(factory=list, init=False)
    returned_s: list[float] = attrs.field(factory=list, init=False)
    violations: list[Violation] = attrs.field(factory=list, init=False)
    _pieces: list[str] = attrs.field(factory=list, init=False)
    last_number: int = attrs.field(default=-1, init=False)
    _last_s: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._last_s = self.started_s

    @property
    def frontend(self) -> int | None:
        """The rank of the frontend that has it; None before its first event."""
        return frontend_of(self.response_id)

    @property
    def returns(self) -> int:
        """How often its client came back."""
        return len(self.returned_s)

    @property
    def text(self) -> str:
        """The text of all deltas."""
        return "".join(self._pieces)

    def see(self, event: Mapping[str, Any], now: float) -> None:
        """Take one event."""
        self._note_silence(now)
        kind = event.get("type")
        if self.ending is not None:
            invariant = "I12" if self.ending is Ending.CANCELLED and kind == DELTA else "I3"
            self._violate(invariant, f"{kind} came after the end ({self.ending})")
            return
        self._check_number(event)
        if kind == "response.created":
            self.response_id = event["response"]["id"]
        elif kind == DELTA:
            self._see_delta(event)
        elif kind == "response.output_text.done" and event["text"] != self.text:
            self._violate("I1", "the text of output_text.done is not that of the deltas")
        elif kind in TERMINAL:
            self._see_end(event, now)

    def take_text(self, piece: str, now: float) -> None:
        """Take some text of a server that numbers nothing; counted as one token."""
        self._note_silence(now)
        self.token_ids += [0] if piece else []
        self._pieces.append(piece)

    def _note_silence(self, now: float) -> None:
        if now - self._last_s > self.gap_s:
            self.gap_s, self.gap_ended_s = now - self._last_s, now
        if now - self._last_s > PAUSE_S:
            self.pauses.append((self._last_s, now))
        self._last_s = now

    @property
    def goes_on(self) -> bool:
        """Whether there is something to come back to, where the connection is lost."""
        return self.comes_back and bool(self.response_id) and self.ending is None

    def lose(self, reason: str, now: float) -> None:
        """The connection ended."""
        if not self.goes_on:
            self.end(Ending.LOST, now, message=reason)

    def come_back(self, now: float) -> None:
        """Its client asks for what follows, on another connection."""
        self.returned_s.append(now)
        self.connected_s = now

    def leave(self, now: float) -> None:
        """We ended it ourselves."""
        self.end(Ending.LEFT, now)

    def give_up(self, now: float) -> None:
        """It did not end in time."""
        self.end(Ending.HANGING, now)

    def end(self, ending: Ending, now: float, *, code: str = "", message: str = "") -> None:
        """It is over, unless it was before."""
        if self.ending is None:
            if ending in (Ending.LOST, Ending.HANGING) and now - self._last_s > PAUSE_S:
                self.pauses.append((self._last_s, now))
            self.ending, self.ended_s, self.code, self.message = ending, now, code, message

    def _check_number(self, event: Mapping[str, Any]) -> None:
        number = event.get("sequence_number")
        if number is None:
            return  # an error event that belongs to no response
        if number <= self.last_number:
            self._violate("I1", f"event number {number} came after {self.last_number}")
        self.last_number = number

    def _see_delta(self, event: Mapping[str, Any]) -> None:
        first, tokens = event["token_index"], event["token_ids"]
        if first != len(self.token_ids):
            word = "repeated" if first < len(self.token_ids) else "missing"
            self._violate(
                "I1", f"token index {first} where {len(self.token_ids)} is next: tokens {word}"
            )
        self.token_ids += tokens
        self.logprobs += [each["logprob"] for each in event.get("logprobs", ())]
        self._pieces.append(event["delta"])
        if event["sequence_number"] // NUMBERS_OF_TOKEN != len(self.token_ids):
            self._violate(
                "I1",
                f"event number {event['sequence_number']} of a delta that ends with token"
                f" {len(self.token_ids)}",
            )

    def _see_end(self, event: Mapping[str, Any], now: float) -> None:
        if event["type"] == "error":
            error = event["error"]
            ending = Ending.FAILED if self.response_id else Ending.REFUSED
            self.end(ending, now, code=error["code"], message=error["message"])
            return
        response = event["response"]
        usage = response.get("usage") or {}
        if usage.get("output_tokens", 0) < len(self.token_ids):
            self._violate(
                "I4", f"usage counts {usage.get('output_tokens')} of {len(self.token_ids)} tokens"
            )
        if event["type"] == "response.failed":
            error = response["error"]
            self.end(Ending.FAILED, now, code=error["code"], message=error["message"])
        elif response["status"] == "cancelled":
            self.end(Ending.CANCELLED, now)
        else:
            self.end(Ending.FINISHED, now)
            if usage.get("output_tokens") != len(self.token_ids):
                self._violate(
                    "I4",
                    f"usage counts {usage.get('output_tokens')} tokens, seen were"
                    f" {len(self.token_ids)}",
                )

    def _violate(self, invariant: str, evidence: str) -> None:
        self.violations.append(Violation(invariant, f"{self.name}: {evidence}"))
