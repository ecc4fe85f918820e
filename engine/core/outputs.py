"""Outputs: sampled tokens, ends and events of requests become messages for their frontends.

Sans-IO: times in, plain data out. A step's tokens are applied to their requests, and most of them
go to the frontend in columns of one message. What no step brings (refusals, replays that had
already ended, events) waits as *pending* until the shell takes it.

*Windows*: a frontend that would only merge the tokens of several steps says so with a request
(`AddRequest.merge_s`): then most of what a token costs, on both sides and on the way, is paid once
for each window of that length. Windows are cut from the clock, so that all of a frontend's requests
with that length are sent together. Nothing is held that is needed at once: the first token, an end,
and what brings a request near its credit, as that is only raised for tokens that were sent. A
request has the index of its first token that was not sent (`Request.unsent_from`), so that a token
that is held costs nothing here. What is held is lost with the engine and comes again with the
replay.
"""

import math

import attrs

from ..messages import FinishReason, RequestEvent, RequestEventKind, RequestOutput, StepOutputs
from ..step_messages import RowLogprobs
from .checks import FAILED
from .endings import COMPLETE, Endings, Statistics, check_stop
from .request import WAITING, Home, Request, RequestStatus
from .scheduler import Scheduler
from .step_builder import ScheduledStep


@attrs.define(eq=False)
class FrontendOutputs:
    """Outputs for one frontend; `StepOutputs` says what the columns are."""

    outputs: list[RequestOutput] = attrs.field(factory=list)
    # Requests whose newest token, alone, goes in columns: to fill these for all requests at once
    # takes less than three calls for each (measured: 58 µs a step of 64 requests, not 71).
    singles: list[Request] = attrs.field(factory=list)

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.outputs or self.singles)

    def add(self, request: Request, first: int) -> None:
        """Add a request's tokens from output index `first` on; a single one goes in columns."""
        if first == request.output_count - 1 and len(request.token_ids) >= request.columns_from:
            self.singles.append(request)
        else:
            self.outputs.append(request.output_from(first))

    def message(self, step_number: int) -> StepOutputs:
        """The message that carries them."""
        singles = self.singles
        return StepOutputs(
            step_number,
            self.outputs,
            [each.attempt for each in singles],
            [len(each.token_ids) - each.prompt_tokens - 1 for each in singles],
            [each.token_ids[-1] for each in singles],
        )


@attrs.define(eq=False)
class PendingOutputs:
    """Bounded by one output for each ADD between steps and two events of each request in a step."""

    _pending: dict[Home, FrontendOutputs] = attrs.field(factory=dict, init=False)
    # Came since the last `put_events` and want events; bounded by what came.
    _came: list[Request] = attrs.field(factory=list, init=False)

    def put(self, home: Home, output: RequestOutput) -> None:
        """Add an output for this frontend."""
        self._pending.setdefault(home, FrontendOutputs()).outputs.append(output)

    def note_arrival(self, request: Request) -> None:
        """Note a request that wants events: the next `put_events` tells if it is queued then."""
        self._came.append(request)

    def put_events(self, scheduler: Scheduler) -> None:
        """Events of what came since the last time and is queued, then of what was scheduled."""
        for request in self._came:
            if request.status in WAITING:
                position = scheduler.waiting.position(request)
                self._put_event(request, RequestEventKind.QUEUED, position)
        self._came.clear()
        for request, kind in scheduler.take_events():
            self._put_event(request, kind)

    def take(self) -> dict[Home, FrontendOutputs]:
        """Take all outputs."""
        if not self._pending:
            return {}
        pending, self._pending = self._pending, {}
        return pending

    def drop(self, home: Home) -> None:
        """Drop a frontend's outputs: it is gone, or gets them by other means."""
        self._pending.pop(home, None)

    def _put_event(self, request: Request, kind: RequestEventKind, detail: int = 0) -> None:
        if request.unsent_from is not None:  # they came before it
            self.put(request.home, request.output_from(request.take_unsent(0)))
        output = RequestOutput(
            request_id=request.request_id,
            attempt=request.attempt,
            first_index=request.output_count,
            token_ids=[],
            events=(RequestEvent(kind, detail),),
        )
        self.put(request.home, output)


@attrs.define(eq=False)
class _Window:
    due_s: float
    # Each once, in order: some of their tokens are held, or were before they were sent or ended.
    requests: dict[Request, None] = attrs.field(factory=dict)


@attrs.define(eq=False)
class OutputWindows:
    """Open windows, at most one for each request that ran in the longest of them."""

    _windows: dict[tuple[Home, float], _Window] = attrs.field(factory=dict, init=False)

    def __bool__(self) -> bool:
        """Whether any token may be delayed."""
        return bool(self._windows)

    def delay(self, request: Request, now: float) -> bool:
        """Delay the newest token; False if it must be sent now, with those that were delayed."""
        index = request.output_count - 1
        if index == request.replayed_tokens or len(request.token_ids) > request.delayed_until:
            return False
        request.unsent_from = index
        merge_s = request.merge_s
        assert merge_s, "its tokens may wait"
        key = (request.home, merge_s)
        window = self._windows.get(key)
        if window is None:
            due_s = (math.floor(now / merge_s) + 1) * merge_s
            window = self._windows[key] = _Window(due_s)
        window.requests[request] = None
        return True

    def take_due(self, until_s: float) -> list[Request]:
        """Close the windows that end by then; their requests that have tokens to send."""
        due = [key for key, window in self._windows.items() if window.due_s <= until_s]
        closed = [self._windows.pop(key) for key in due]
        return [
            request
            for window in closed
            for request in window.requests
            if request.unsent_from is not None and not request.is_finished
        ]

    def drop(self, home: Home) -> None:
        """Drop a frontend's windows: it is gone, or gets the tokens by other means."""
        for key in [key for key in self._windows if key[0] == home]:
            for request in self._windows.pop(key).requests:
                request.unsent_from = None

    def check_invariants(self) -> None:
        """Fails an assertion if a request is in a window of others."""
        for (home, merge_s), window in self._windows.items():
            assert merge_s > 0
            for request in window.requests:
                assert (request.home, request.merge_s) == (home, merge_s)


@attrs.define(eq=False)
class TokenApplier:
    """Appends sampled tokens, ends requests by stop rules, and gathers the outputs of both.

    What it is given has been matched with the step (`checks`).
    """

    endings: Endings
    statistics: Statistics
    windows: OutputWindows

    def apply(
        self,
        scheduled: ScheduledStep,
        token_ids: list[int],
        logprobs: list[tuple[Request, RowLogprobs]],
        failed_rows: list[tuple[int, str]],
        *,
        now: float,
    ) -> dict[Home, FrontendOutputs]:
        """The outputs of a step. `token_ids` are of `scheduled.sampling`, in that order.

        What has ended meanwhile is passed over; none is preempted in flight.
        """
        scheduled.note_prefills(now)
        for request, arrays in logprobs:
            if request.status is RequestStatus.RUNNING:
                request.note_logprobs(arrays)
        outputs: dict[Home, FrontendOutputs] = {}
        home: Home = None
        current = FrontendOutputs()
        appended = 0
        for request, token_id in zip(scheduled.sampling, token_ids, strict=True):
            if request.status is not RequestStatus.RUNNING:
                continue
            if request.home is not home:  # most have one, and to look it up takes a hash
                home = request.home
                current = outputs.setdefault(home, FrontendOutputs())
            if token_id == FAILED:
                self._fail(request, dict(failed_rows)[request.row], current)
                continue
            tokens = request.token_ids
            tokens.append(token_id)
            length = len(tokens)
            may_end = token_id in request.ending_ids or length >= request.length_max
            if (may_end or request.grammar is not None) and self._ends(request, current):
                continue
            appended += 1
            first = length - request.prompt_tokens - 1
            if request.merge_s:
                if request.unsent_from is not None and length <= request.delayed_until:
                    continue  # held with those before it
                if self.windows.delay(request, now):
                    continue
                current.add(request, request.take_unsent(first))
            elif length >= request.columns_from:  # as `add`, whose call would take 0.1 µs of 0.9
                current.singles.append(request)
            else:
                current.outputs.append(request.output_from(first))
        self.statistics.output_tokens += appended
        if self.windows:  # all tokens of a frontend may be held
            outputs = {home: each for home, each in outputs.items() if each}
        return outputs

    def add_due(self, outputs: dict[Home, FrontendOutputs], until_s: float) -> None:
        """Add the tokens whose windows end by then."""
        for request in self.windows.take_due(until_s):
            of_home = outputs.setdefault(request.home, FrontendOutputs())
            of_home.add(request, request.take_unsent(0))

    def _fail(self, request: Request, reason: str, outputs: FrontendOutputs) -> None:
        first = request.take_unsent(request.output_count)
        outputs.outputs.append(self.endings.fail_row(request, reason).output_from(first))

    def _ends(self, request: Request, outputs: FrontendOutputs) -> bool:
        """Whether its newest token ends it: by a stop rule, or as its grammar says."""
        stop = check_stop(request)
        grammar = request.grammar
        if grammar is not None and (stop is None or stop.reason is FinishReason.LENGTH):
            if not grammar.accept(request.token_ids[-1]):
                request.token_ids.pop()
                first = request.take_unsent(request.output_count)
                record = self.endings.fail_form(request, grammar.failure)
                outputs.outputs.append(record.output_from(first))
                return True
            stop = COMPLETE if grammar.is_terminated else stop
        if stop is None:
            return False
        self.statistics.output_tokens += 1
        first = request.take_unsent(request.output_count - 1)
        outputs.outputs.append(self.endings.finish(request, stop).output_from(first))
        return True
