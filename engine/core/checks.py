"""Checks of what reaches the engine core: a frontend's ADD, and the workers' result of a step.

Sans-IO: pure functions that change nothing.

An ADD is checked against the model and the engine's limits, and a bad one fails alone. The codec
has checked types, `SamplingParams` its own ranges; here is what depends on the model, once more on
this side of the wire, because an id beyond the vocabulary or a length beyond the KV cache would end
the worker, and all requests with it.

A result is matched with the step that was asked for, before anything is changed by it. Workers are
ours, so one that does not fit is a bug, not an attack: it ends the engine with a message that says
what did not fit, instead of a wrong token for some request.
"""

from collections.abc import Collection
from typing import ClassVar

import attrs

from ..config import EngineSettings
from ..embeddings import PARAMETER, PLACEHOLDER_ID, EmbeddingLimits
from ..errors import EngineError, InvalidParameter, PromptTooLong
from ..messages import AddRequest
from ..request_options import LABEL_CHARACTERS_MAX
from ..sampling_params import BAD_WORD_CHARACTERS_MAX, BAD_WORDS_MAX, MAX_LOGPROBS_DEFAULT
from ..step_messages import RowLogprobs, StepResult, WorkerReady
from .logprob_log import ITEM_BYTES
from .request import Request
from .step_builder import ScheduledStep

# Our own ids have under 50 characters; a client's own may be longer, but not a document.
REQUEST_ID_CHARACTERS_MAX = 256
# Numbers that the worker keeps in signed 32-bit integers.
CHOICE_MAX = 2**31 - 1
# Each word with and without a space before it; a character is at most four tokens.
BAD_WORD_SPELLINGS_MAX = 2 * BAD_WORDS_MAX
BAD_WORD_TOKENS_MAX = 4 * (BAD_WORD_CHARACTERS_MAX + 1)
# In the place of a token, for a row that has none.
FAILED = -1


@attrs.frozen
class RequestLimits:
    """Limits of a request, in tokens.

    `max_model_len` is never more than the KV cache holds, so that every request fits when alone.
    `max_logprobs` is how many alternatives may be asked for.
    """

    max_model_len: int
    vocab_size: int
    max_logprobs: int = MAX_LOGPROBS_DEFAULT
    embeddings: EmbeddingLimits = attrs.field(factory=EmbeddingLimits)

    @classmethod
    def of(cls, settings: EngineSettings, ready: WorkerReady) -> "RequestLimits":
        """Limits of an engine with these workers.

        Raises `InvalidParameter` if they have no room for a single block.
        """
        if ready.kv_blocks < 1:
            raise InvalidParameter("kv_blocks", "must be at least 1: there is no memory for any")
        lengths = [ready.max_model_len, ready.kv_blocks * settings.block_tokens]
        if settings.max_model_len:
            lengths.append(settings.max_model_len)
        return cls(
            max_model_len=min(lengths),
            vocab_size=ready.vocab_size,
            max_logprobs=settings.max_logprobs,
            embeddings=EmbeddingLimits(ready.hidden_size, settings.max_num_batched_tokens),
        )


def check_request(request: AddRequest, limits: RequestLimits) -> None:
    """Raises `InvalidParameter` (naming the field) or `PromptTooLong`; returns if it can be served.

    A replay that is already at its length is in order: it ends at once, with that reason.
    """
    _check_labels(request)
    prompt_tokens = len(request.prompt_token_ids)
    if prompt_tokens == 0:
        raise InvalidParameter("prompt", "must have at least one token")
    if prompt_tokens + 1 > limits.max_model_len:
        raise PromptTooLong(prompt_tokens, limits.max_model_len)
    _check_ids("prompt", request.prompt_token_ids, limits)
    _check_embeds(request, limits)
    _check_ids("output_token_ids", request.output_token_ids, limits)
    _check_ids("eos_token_ids", request.eos_token_ids, limits)
    request.sampling.check_model(
        vocab_size=limits.vocab_size,
        max_logprobs=limits.max_logprobs,
        prompt_tokens=prompt_tokens,
        max_model_len=limits.max_model_len,
    )
    _check_bad_words(request, limits)
    if request.sampling.seed is None:
        raise InvalidParameter("seed", "must be set: admission chooses one for each request")
    _check_possible(request, limits)


def _check_labels(request: AddRequest) -> None:
    if not request.request_id:
        raise InvalidParameter("request_id", "must not be empty")
    for name, label, most in (
        ("request_id", request.request_id, REQUEST_ID_CHARACTERS_MAX),
        ("parent", request.parent, REQUEST_ID_CHARACTERS_MAX),
        ("principal", request.principal, LABEL_CHARACTERS_MAX),
    ):
        if len(label) > most:
            raise InvalidParameter(name, f"must have at most {most} characters")
    if request.attempt < 0:
        raise InvalidParameter("attempt", f"must be at least 0, not {request.attempt}")
    if not 0 <= request.choice <= CHOICE_MAX:
        raise InvalidParameter("choice", f"must be from 0 to {CHOICE_MAX}")
    request.check_sent()
    if request.credit is not None and request.credit < 0:
        raise InvalidParameter("credit", f"must be at least 0, not {request.credit}")


def _check_ids(name: str, token_ids: Collection[int], limits: RequestLimits) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < limits.vocab_size):
        raise InvalidParameter(name, f"must be token ids from 0 to {limits.vocab_size - 1}")


def _check_embeds(request: AddRequest, limits: RequestLimits) -> None:
    """Whether they are numbers is not asked again: if not, their row fails alone."""
    if request.prompt_embeds is None:
        return
    limits.embeddings.check(request.prompt_embeds, len(request.prompt_token_ids))
    if any(token_id != PLACEHOLDER_ID for token_id in request.prompt_token_ids):
        raise InvalidParameter(PARAMETER, "must not be together with token ids")
    if request.sampling.prompt_logprobs is not None:
        raise InvalidParameter("prompt_logprobs", f"must not be together with {PARAMETER}")


def _check_bad_words(request: AddRequest, limits: RequestLimits) -> None:
    if len(request.bad_words) > BAD_WORD_SPELLINGS_MAX:
        raise InvalidParameter("bad_words", f"must be at most {BAD_WORD_SPELLINGS_MAX} spellings")
    for token_ids in request.bad_words:
        if not 0 < len(token_ids) <= BAD_WORD_TOKENS_MAX:
            raise InvalidParameter("bad_words", f"must have 1 to {BAD_WORD_TOKENS_MAX} tokens each")
        _check_ids("bad_words", token_ids, limits)


def _check_possible(request: AddRequest, limits: RequestLimits) -> None:
    """Refuse a request that leaves no token to choose, whatever was sampled before it."""
    sampling = request.sampling
    forbidden = {token_ids[0] for token_ids in request.bad_words if len(token_ids) == 1}
    name = "bad_words"
    if sampling.min_tokens > 0:
        name = "min_tokens"
        forbidden.update(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            forbidden.update(request.eos_token_ids)
    left = limits.vocab_size - len(forbidden)
    if sampling.allowed_token_ids is not None:
        left, name = len(set(sampling.allowed_token_ids) - forbidden), "allowed_token_ids"
    if left <= 0:
        raise InvalidParameter(name, "leaves no token to choose")


@attrs.frozen
class UnexpectedResult(EngineError):
    """A worker's result does not belong to the step in flight; the engine cannot go on."""

    code: ClassVar[str] = "unexpected_result"
    retryable: ClassVar[bool] = True  # on another engine
    step: int
    reason: str

    def __str__(self) -> str:
        return f"result of step {self.step}: {self.reason}"


def match_result(
    scheduled: ScheduledStep | None, result: StepResult, *, vocab_size: int
) -> list[int]:
    """The sampled tokens in the order of `scheduled.sampling`; the worker's order does not matter.

    `FAILED` is in the place of a row that failed alone.

    Raises `UnexpectedResult` for another step's result, for rows that are not exactly those that
    sample, and for tokens beyond the vocabulary.
    """
    if scheduled is None or result.number != scheduled.step.number:
        raise UnexpectedResult(result.number, "no such step is in flight")
    token_ids = result.token_ids
    if len(token_ids) != len(result.rows):
        raise UnexpectedResult(result.number, "rows and tokens differ in number")
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        raise UnexpectedResult(result.number, f"tokens {token_ids}, vocabulary {vocab_size}")
    rows = scheduled.sampling_rows
    if rows == result.rows and not result.failed_rows:
        return token_ids
    failed = [row for row, _ in result.failed_rows]
    if sorted(rows) != sorted(result.rows + failed):
        raise UnexpectedResult(result.number, f"rows {result.rows + failed}, expected {rows}")
    token_of_row = dict(zip(result.rows, token_ids, strict=True))
    return [token_of_row.get(row, FAILED) for row in rows]


def match_logprobs(
    scheduled: ScheduledStep | None, result: StepResult
) -> list[tuple[Request, RowLogprobs]]:
    """Whose logprobs each of the result's arrays are. Raises `UnexpectedResult`, as above."""
    if not result.logprobs or scheduled is None:
        return []
    found = []
    request_of_row = dict(zip(scheduled.step.rows, scheduled.requests, strict=True))
    for arrays in result.logprobs:
        request = request_of_row.get(arrays.row)
        positions, rest = divmod(len(arrays.ranks), ITEM_BYTES)
        items = ITEM_BYTES * positions * arrays.width
        if request is None or rest or not len(arrays.token_ids) == len(arrays.logprobs) == items:
            raise UnexpectedResult(result.number, f"logprobs of row {arrays.row} do not fit")
        found.append((request, arrays))
    return found
