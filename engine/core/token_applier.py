"""Applies what a step has sampled: tokens to their requests, ends by stop rules, news of both.

Sans-IO: what it is given has been matched with the step (`result_check`). Must not know blocks,
rows or what is computed next.
"""

import attrs

from ..errors import OutputFailed
from ..messages import FinishReason
from ..step_messages import RowLogprobs
from .endings import Endings
from .output_windows import OutputWindows
from .request import Frontend, Request, RequestStatus
from .result_check import FAILED
from .statistics import News, Statistics
from .step_draft import ScheduledStep
from .stop_check import COMPLETE, check_stop


@attrs.define(eq=False)
class TokenApplier:
    """Over the parts of one engine core."""

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
    ) -> dict[Frontend, News]:
        """What each frontend hears. `token_ids` are of `scheduled.sampling`, in that order.

        What has ended meanwhile is passed over; nobody is preempted in flight.
        """
        for request, arrays in logprobs:
            if request.status is RequestStatus.RUNNING:
                request.note_logprobs(arrays)
        news: dict[Frontend, News] = {}
        frontend: Frontend = None
        told = News()
        appended = 0
        for request, token_id in zip(scheduled.sampling, token_ids, strict=True):
            if request.status is not RequestStatus.RUNNING:
                continue
            if request.frontend is not frontend:  # most have one, and to look it up takes a hash
                frontend = request.frontend
                told = news.setdefault(frontend, News())
            tokens = request.token_ids
            length = len(tokens) + 1
            if (
                request.plain_above < length < request.plain_below
                and token_id not in request.ending_ids
                and token_id != FAILED
            ):  # what `_append` does with most, without a call
                tokens.append(token_id)
                appended += 1
                if request.merge_s:
                    # What waits already goes on waiting, but near its credit.
                    if request.untold_from is None or length > request.held_until:
                        self._tell_or_hold(request, told, now)
                    continue
                told.attempts.append(request.attempt)
                told.indices.append(length - 1 - request.prompt_tokens)
                told.token_ids.append(token_id)
            elif token_id == FAILED:
                self._fail(request, dict(failed_rows)[request.row], told)
            else:
                self._append(request, token_id, told, now)
        self.statistics.output_tokens += appended
        return {frontend: told for frontend, told in news.items() if told}

    def tell_due(self, news: dict[Frontend, News], until_s: float) -> None:
        """Add the tokens whose time to wait is over by then."""
        for request in self.windows.take_due(until_s):
            _tell(request, request.take_untold(0), news.setdefault(request.frontend, News()))

    def _fail(self, request: Request, reason: str, news: News) -> None:
        if request.grammar is not None and request.grammar.failure:
            reason = request.grammar.failure  # why nothing was allowed
        first = request.take_untold(request.output_count)
        news.outputs.append(self.endings.fail_row(request, reason).output_from(first))

    def _append(self, request: Request, token_id: int, news: News, now: float) -> None:
        index = len(request.token_ids) - request.prompt_tokens
        request.token_ids.append(token_id)
        stop = check_stop(request)
        grammar = request.grammar
        if grammar is not None and (stop is None or stop.reason is FinishReason.LENGTH):
            if not grammar.accept(token_id):
                request.token_ids.pop()
                record = self.endings.fail(request, OutputFailed(grammar.failure))
                news.outputs.append(record.output_from(request.take_untold(index)))
                return
            stop = COMPLETE if grammar.is_terminated else stop
        self.statistics.output_tokens += 1
        if stop is not None:
            first = request.take_untold(index)
            news.outputs.append(self.endings.finish(request, stop).output_from(first))
        else:
            self._tell_or_hold(request, news, now)

    def _tell_or_hold(self, request: Request, news: News, now: float) -> None:
        """Its newest token, and what waited."""
        index = request.output_count - 1
        if not (request.merge_s and self.windows.hold(request, index, now)):
            _tell(request, request.take_untold(index), news)


def _tell(request: Request, first: int, news: News) -> None:
    """All from output index `first` on."""
    in_columns = request.in_columns and first == request.output_count - 1
    if in_columns and not (request.cached_tokens and first == request.replayed_tokens):
        news.attempts.append(request.attempt)
        news.indices.append(first)
        news.token_ids.append(request.token_ids[-1])
    else:
        news.outputs.append(request.output_from(first))
