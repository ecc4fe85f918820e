"""Request store: live requests by name, and how the last ones have ended.

Sans-IO: dictionaries.

A message that is lost with its link may have been the last one of a request. So what has ended is
kept, its output tokens with it, until the frontend's next RESYNC no longer asks for it, or until
`FINISHED_COUNT_MAX` or `FINISHED_TOKENS_MAX` is reached: then the oldest goes; a frontend
that still needs it is answered that it is unknown, sends it again, and gets the same tokens.
"""

import attrs

from ..messages import FinishReason, LiveRequest, RequestKey, RequestOutput
from .logprob_log import LogprobLog, Logs, logprobs_from
from .request import Home, Request

# A link is down for seconds; so many requests end in some seconds of a busy engine.
FINISHED_COUNT_MAX = 1024
# About 32 MB of Python integers at worst; a guess.
FINISHED_TOKENS_MAX = 1_000_000
# Size of a Python integer and its place in a list.
TOKEN_BYTES = 32


# Not frozen, though it is never changed: that would take three times as long to make.
@attrs.define(kw_only=True)
class FinishedRequest:
    """How one attempt ended, with all its output (replayed tokens included)."""

    home: Home
    request_id: str
    attempt: int
    output_token_ids: list[int]
    finish_reason: FinishReason
    stop_token_id: int | None = None
    complete: bool = False
    cached_tokens: int = 0
    prefill_s: float = 0.0
    error: str = ""
    error_code: str = ""
    logs: Logs = (None, None)
    # Output tokens that came with it.
    replayed_tokens: int = 0

    @property
    def size(self) -> int:
        """In tokens, of some 32 bytes each; arrays are counted as so many tokens."""
        logs = sum(log.size for log in self.logs if log is not None)
        return len(self.output_token_ids) + logs // TOKEN_BYTES

    def has_from(self, index: int) -> bool:
        """Whether `output_from` has all that belongs to the tokens from this index on."""
        is_known = 0 <= index <= len(self.output_token_ids)
        return is_known and is_whole(index, self.replayed_tokens, self.logs[0])

    def output_from(self, index: int) -> RequestOutput:
        """The request's last message, with all tokens from output index `index`."""
        logprobs, prompt_logprobs = logprobs_from(self.logs, index)
        return RequestOutput(
            request_id=self.request_id,
            attempt=self.attempt,
            first_index=index,
            token_ids=self.output_token_ids[index:],
            finish_reason=self.finish_reason,
            stop_token_id=self.stop_token_id,
            complete=self.complete,
            cached_tokens=self.cached_tokens,
            prefill_s=self.prefill_s,
            error=self.error,
            error_code=self.error_code,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        )


@attrs.define(eq=False)
class RequestStore:
    """Live requests by frontend and id (one attempt each), and the finished ones of late."""

    finished_count_max: int = FINISHED_COUNT_MAX
    finished_tokens_max: int = FINISHED_TOKENS_MAX

    # No frontend is listed without requests.
    _live: dict[Home, dict[str, Request]] = attrs.field(factory=dict, init=False)
    # Oldest first; bounded by the two limits.
    _finished: dict[tuple[Home, str], FinishedRequest] = attrs.field(factory=dict, init=False)
    _finished_tokens: int = attrs.field(default=0, init=False)

    def insert(self, request: Request) -> None:
        """A new live request; it takes the place of what ended under its name."""
        live = self._live.setdefault(request.home, {})
        assert request.request_id not in live
        live[request.request_id] = request
        self._drop_finished((request.home, request.request_id))

    def remove(self, request: Request) -> None:
        """Remove a request that has ended."""
        live = self._live[request.home]
        removed = live.pop(request.request_id)
        assert removed is request
        if not live:
            del self._live[request.home]

    def find(self, home: Home, request_id: str) -> Request | None:
        """The live request of this name, whichever attempt."""
        live = self._live.get(home)
        return None if live is None else live.get(request_id)

    def find_attempt(self, home: Home, request_id: str, attempt: int) -> Request | None:
        """The live request of this name if it is this very attempt."""
        request = self.find(home, request_id)
        return request if request is not None and request.attempt == attempt else None

    def live(self, home: Home) -> list[Request]:
        """This frontend's live requests, oldest first."""
        return list(self._live.get(home, {}).values())

    def live_count(self) -> int:
        """Live requests of all frontends."""
        return sum(map(len, self._live.values()))

    def keep_finished(self, record: FinishedRequest) -> None:
        """Remember it, at the expense of the oldest if there is no room."""
        key = (record.home, record.request_id)
        self._drop_finished(key)
        self._finished[key] = record
        self._finished_tokens += record.size
        while (
            len(self._finished) > self.finished_count_max
            or self._finished_tokens > self.finished_tokens_max
        ):
            self._drop_finished(next(iter(self._finished)))

    def find_finished(self, home: Home, key: RequestKey) -> FinishedRequest | None:
        """How this attempt ended, if that is still known."""
        record = self._finished.get((home, key.request_id))
        return record if record is not None and record.attempt == key.attempt else None

    def forget_finished(self, home: Home, *, keep: set[str]) -> None:
        """Forget how this frontend's requests ended, but for the ids in `keep`."""
        for key in [key for key in self._finished if key[0] == home and key[1] not in keep]:
            self._drop_finished(key)

    def _drop_finished(self, key: tuple[Home, str]) -> None:
        record = self._finished.pop(key, None)
        if record is not None:
            self._finished_tokens -= record.size

    def check_invariants(self) -> None:
        """Fails an assertion if a bound is exceeded or a name is live and finished."""
        assert len(self._finished) <= self.finished_count_max
        assert self._finished_tokens <= self.finished_tokens_max
        tokens = sum(record.size for record in self._finished.values())
        assert self._finished_tokens == tokens
        for home, live in self._live.items():
            assert live
            for request_id, request in live.items():
                assert (request.home, request.request_id) == (home, request_id)
                assert not request.is_finished
                assert (home, request_id) not in self._finished


def is_continued(request: Request, entry: LiveRequest) -> bool:
    """Whether what the frontend wants is what runs here, as far as both say, and can be sent."""
    return (
        request.attempt == entry.attempt
        and entry.next_index <= request.output_count
        and is_whole(entry.next_index, request.replayed_tokens, request.logprobs)
    )


def is_whole(index: int, replayed_tokens: int, logprobs: LogprobLog | None) -> bool:
    """Whether all that belongs to the tokens from this index on is known here.

    Who takes a home over may ask for tokens that a replay came with, as it knows of fewer. There is
    nothing here but these tokens themselves: no logprobs of theirs, nor of the prompt, which come
    with the first. Such a request is sent again, with the tokens that are known there.
    """
    return index >= replayed_tokens or (logprobs is None and index > 0)
