"""Traces of requests for OpenTelemetry: what happened to each, as spans below one of its own.

    llm_request     from its admission to its end
      queue         until it was in an engine's step
      prefill       until its first token
      decode        tokens came; again after each of the next three
      death         from its last token to the news that its engine is gone
      replay        from then to the first token of the engine that goes on with it
      resume        from the end of this frontend's life before to the first token since

The request carries its ids (`AddRequest.trace`), so that a journal has them: the next life of a
frontend goes on with the trace, and tells the whole request's span, which the one before it could
not. Spans are offered when they end; a life that is killed takes along what was not exported.

Sans-IO: times are trio's. `api.span_export` sends the spans away.
"""

import math
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import ContextVar

import attrs

from .ledger_entry import LedgerEntry, LedgerStatus

# Spans that wait to be sent: some thousand requests. Beyond it new ones are dropped, and counted.
SPANS_MAX = 8192
_TRACE = re.compile(r"([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{16})?")
# Version 00 of the W3C's Trace Context; later ones begin alike.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
# The `traceparent` of the client's request that this task serves.
_parent: ContextVar[str] = ContextVar("traceparent", default="")


def set_traceparent(value: str) -> None:
    """Put what this task, and tasks that it starts, admit from now on below this span."""
    _parent.set(value)


def traceparent() -> str:
    """Value of `set_traceparent`; "" if none."""
    return _parent.get()


@attrs.frozen
class TraceIds:
    """Ids of a request's trace, of its own span, and of the one above it ("" for none)."""

    trace_id: str
    span_id: str
    parent_id: str

    @classmethod
    def of_text(cls, text: str) -> "TraceIds | None":
        """Parse the text that `str` makes; None for anything else."""
        found = _TRACE.fullmatch(text)
        return None if found is None else cls(found[1], found[2], found[3] or "")

    def __str__(self) -> str:
        return f"{self.trace_id}-{self.span_id}-{self.parent_id}"


@attrs.frozen(kw_only=True)
class TraceSpan:
    """Span that has ended, as OpenTelemetry has it; `error` is not empty if it failed."""

    ids: TraceIds
    name: str
    begin_s: float
    end_s: float
    attributes: dict[str, str | int] = attrs.field(factory=dict)
    error: str = ""


@attrs.define(eq=False)
class Tracer:
    """Begins traces, and keeps spans until they are taken. `chance` draws ids.

    A client that says in its `traceparent` that the trace is not recorded has none here either.
    """

    chance: random.Random
    # Called when there are spans after there were none.
    on_spans: Callable[[], None] = lambda: None
    dropped: int = attrs.field(default=0, init=False)
    # Bounded by `SPANS_MAX`, and what was put back.
    _spans: deque[TraceSpan] = attrs.field(factory=deque, init=False)

    def begin(self, entry: LedgerEntry, now: float) -> "RequestTrace | None":
        """Trace this request, which came now, or goes on from another life since then."""
        request = entry.request
        ids = TraceIds.of_text(request.trace)
        is_new = ids is None
        if ids is None:
            ids = self._draw_ids(traceparent())
            if ids is None:
                return None
            request.trace = str(ids)
        return RequestTrace(self, entry, ids, now, is_new)

    def draw_id(self, bits: int) -> str:
        """A new one, not all zeros."""
        return f"{self.chance.randrange(1, 2**bits):0{bits // 4}x}"

    def put(self, span: TraceSpan) -> None:
        """Keep this until it is taken, if there is room."""
        if len(self._spans) >= SPANS_MAX:
            self.dropped += 1
            return
        self._spans.append(span)
        if len(self._spans) == 1:
            self.on_spans()

    def take(self, most: int) -> list[TraceSpan]:
        """The oldest ones, in order; they are the caller's."""
        return [self._spans.popleft() for _ in range(min(most, len(self._spans)))]

    def put_back(self, spans: Sequence[TraceSpan]) -> None:
        """Keep these, which were taken, before all others."""
        self._spans.extendleft(reversed(spans))

    def _draw_ids(self, parent: str) -> TraceIds | None:
        above = _TRACEPARENT.fullmatch(parent.strip())
        if above is None or not int(above[1], 16) or not int(above[2], 16):
            return TraceIds(self.draw_id(128), self.draw_id(64), "")
        is_sampled = int(above[3], 16) & _SAMPLED
        return TraceIds(above[1], self.draw_id(64), above[2]) if is_sampled else None


@attrs.define(eq=False)
class RequestTrace:
    """Makes spans of one request's changes of status (a `StateObserver`)."""

    tracer: Tracer
    entry: LedgerEntry
    ids: TraceIds
    began_s: float
    # False if another life of its frontend began it: of its time before there are no spans.
    is_new: bool
    # When the news came that its engine is gone; inf while it has one that gives tokens.
    _lost_s: float = attrs.field(default=math.inf, init=False)
    # When this life began it, or went on with it.
    _begun_here_s: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._begun_here_s = self.began_s

    def handle_adopted(self, admitted_s: float) -> None:
        """Note when another life admitted the request."""
        self.began_s = admitted_s

    def handle_move(self, before: LedgerStatus, since: float, now: float) -> None:
        """Note that the status was `before` since then, and is another now."""
        entry, status = self.entry, self.entry.state.status
        if before is LedgerStatus.STREAMING:
            end_s = now if entry.state.ended else entry.token_at
            self._add("decode", since, end_s)
        if status is LedgerStatus.UNPLACED:
            self._lost_s = now
        elif status is LedgerStatus.PLACED and entry.is_replayed:
            silent_s = min(entry.token_at, self._lost_s)
            self._add("death", silent_s, self._lost_s, error=str(entry.lost_by or ""))
        elif status is LedgerStatus.STREAMING:
            self._add_begin(now)
            self._lost_s = math.inf
        if entry.state.ended:
            self._add_whole(now)

    def _add_begin(self, now: float) -> None:
        """The first token, or the first after a pause."""
        entry = self.entry
        engine = "" if entry.peer is None else str(entry.peer)
        attributes: dict[str, str | int] = {"engine": engine}
        if entry.is_adopted:
            self._add("resume", min(entry.token_at, self._begun_here_s), now, attributes)
        elif self._lost_s < math.inf and entry.is_replayed:
            attributes["attempt"] = entry.attempts
            self._add("replay", self._lost_s, now, attributes)
        elif self.is_new:
            begun_s = max(self.began_s, now - entry.state.prefill_s)
            self._add("queue", self.began_s, begun_s)
            self._add("prefill", begun_s, now, attributes)

    def _add(
        self,
        name: str,
        begin_s: float,
        end_s: float,
        attributes: dict[str, str | int] | None = None,
        *,
        error: str = "",
    ) -> None:
        ids = TraceIds(self.ids.trace_id, self.tracer.draw_id(64), self.ids.span_id)
        self.tracer.put(
            TraceSpan(
                ids=ids,
                name=name,
                begin_s=begin_s,
                end_s=end_s,
                attributes=attributes or {},
                error=error,
            )
        )

    def _add_whole(self, now: float) -> None:
        entry, status = self.entry, self.entry.state.status
        attributes: dict[str, str | int] = {
            "gen_ai.request.id": entry.request.request_id,
            "gen_ai.usage.input_tokens": len(entry.request.prompt_token_ids),
            "gen_ai.usage.output_tokens": len(entry.token_ids),
            "end": status.value,
        }
        error = str(entry.lost_by or "it failed") if status is LedgerStatus.FAILED else ""
        self.tracer.put(
            TraceSpan(
                ids=self.ids,
                name="llm_request",
                begin_s=self.began_s,
                end_s=now,
                attributes=attributes,
                error=error,
            )
        )
