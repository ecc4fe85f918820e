"""Applies what a step has sampled: tokens to their requests, ends by stop rules, news of both.

Sans-IO: what it is given has been matched with the step (`result_check`). Must not know blocks,
rows or what is computed next.
"""

import attrs

from ..errors import OutputFailed
from ..messages import FinishReason
from ..step_messages import RowLogprobs
from .endings import Endings
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

    def apply(
        self,
        scheduled: ScheduledStep,
        token_ids: list[int],
        logprobs: list[tuple[Request, RowLogprobs]],
        failed_rows: list[tuple[int, str]],
    ) -> dict[Frontend, News]:
        """What each frontend hears. `token_ids` are of `scheduled.sampling`, in that order.

        What has ended meanwhile is passed over; nobody is preempted in flight.
        """
        for request, arrays in logprobs:
            if request.status is RequestStatus.RUNNING:
                request.note_logprobs(arrays)
        news: dict[Frontend, News] = {}
        appended = 0
        for request, token_id in zip(scheduled.sampling, token_ids, strict=True):
            if request.status is not RequestStatus.RUNNING:
                continue
            told = news.get(request.frontend)
            if told is None:
                told = news[request.frontend] = News()
            tokens = request.token_ids
            length = len(tokens) + 1
            if (
                request.plain_above < length < request.plain_below
                and token_id not in request.ending_ids
                and token_id != FAILED
            ):  # what `_append` does with most, without a call
                tokens.append(token_id)
                appended += 1
                told.attempts.append(request.attempt)
                told.indices.append(length - 1 - request.prompt_tokens)
                told.token_ids.append(token_id)
            elif token_id == FAILED:
                self._fail(request, dict(failed_rows)[request.row], told)
            else:
                self._append(request, token_id, told)
        self.statistics.output_tokens += appended
        return news

    def _fail(self, request: Request, reason: str, news: News) -> None:
        if request.grammar is not None and request.grammar.failure:
            reason = request.grammar.failure  # why nothing was allowed
        record = self.endings.fail_row(request, reason)
        news.outputs.append(record.output_from(request.output_count))

    def _append(self, request: Request, token_id: int, news: News) -> None:
        index = len(request.token_ids) - request.prompt_tokens
        request.token_ids.append(token_id)
        stop = check_stop(request)
        grammar = request.grammar
        if grammar is not None and (stop is None or stop.reason is FinishReason.LENGTH):
            if not grammar.accept(token_id):
                request.token_ids.pop()
                record = self.endings.fail(request, OutputFailed(grammar.failure))
                news.outputs.append(record.output_from(index))
                return
            stop = COMPLETE if grammar.is_terminated else stop
        self.statistics.output_tokens += 1
        if stop is not None:
            news.outputs.append(self.endings.finish(request, stop).output_from(index))
        elif request.in_columns and not (
            request.cached_tokens and index == request.replayed_tokens
        ):
            news.attempts.append(request.attempt)
            news.indices.append(index)
            news.token_ids.append(token_id)
        else:
            news.outputs.append(request.output_from(index))
