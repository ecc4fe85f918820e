"""What a journal keeps of a response for a successor: its request as it came, and how it ended.

Sans-IO: a response in, notes out, and back. The runtime does not read these bytes.
"""

import attrs
import msgspec

from ...engine.sampling_params import SamplingParams
from ...runtime.journal.journal import AdmissionNote
from ...runtime.journal.records import AdmissionRecord
from ...runtime.text.outputs import GenerationOutput
from ..openai.response_events import Ending
from ..schema.fields import JsonObject
from .history import Conversation
from .response import Response

SURFACE = "responses"
# A whole answer without a key that may have so many tokens is gone on with by a successor. To write
# a request down takes 30 µs, 70 in a busy process: more than a short answer may cost, and that is
# soon computed again.
LONG_TOKENS = 64


@attrs.frozen(kw_only=True)
class KeptRequest:
    """The body, which the same reader reads again, and the conversation that it continues."""

    values: JsonObject
    before: Conversation | None = None
    # The socket session that it is kept for alone.
    session: str = ""
    # Whether it has an idempotency key, so that its client may ask for it again.
    is_keyed: bool = False


@attrs.frozen(kw_only=True)
class KeptEnding:
    """The end, behind so many output tokens, by CLOCK_MONOTONIC; and for whom it is kept."""

    ending: Ending
    token_count: int
    ended_ns: int
    is_stored: bool
    session: str = ""
    is_keyed: bool = False
    # Its prompt, which is not kept, had opened the model's reasoning.
    is_opened: bool = False


def is_long(sampling: SamplingParams, choices: int = 1) -> bool:
    """Whether it may have so many tokens that a successor is to go on with it."""
    return sampling.max_tokens is None or choices * sampling.max_tokens >= LONG_TOKENS


def is_resumable(response: Response) -> bool:
    """Whether a successor is to go on with it, so that it is written down as it comes."""
    request = response.request
    is_wanted = response.streaming or request.background or response.keep_s > 0
    return is_wanted or is_long(request.sampling)


def note_of(response: Response) -> AdmissionNote:
    """For its admission."""
    request = response.request
    is_keyed = response.is_keyed
    kept = KeptRequest(
        values=request.values, before=response.before, session=response.session, is_keyed=is_keyed
    )
    return AdmissionNote(
        name=response.response_id,
        surface=SURFACE,
        body=msgspec.json.encode(kept),
        created_at=response.record.events.created_at,
        is_resumable=is_resumable(response),
    )


def kept_request(admission: AdmissionRecord) -> KeptRequest:
    """What `note_of` has noted. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(admission.body, type=KeptRequest)


def said_of(response: Response, ended_ns: int) -> bytes:
    """Of a response that has ended."""
    record = response.record
    assert record.ending is not None
    kept = KeptEnding(
        ending=record.ending,
        token_count=record.token_count,
        ended_ns=ended_ns,
        is_stored=response.request.store,
        session=response.session,
        is_keyed=response.is_keyed,
        is_opened=response.is_opened,
    )
    return msgspec.json.encode(kept)


def kept_ending(said: bytes) -> KeptEnding:
    """What `said_of` has noted. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(said, type=KeptEnding)


def first_tokens(output: GenerationOutput, count: int) -> GenerationOutput:
    """The output without what is behind so many of its tokens."""
    texts = output.parts[:count]
    return GenerationOutput(
        "".join(texts),
        output.token_ids[:count],
        output.token_count - len(output.token_ids) + count,
        index=output.index,
        logprobs=None if output.logprobs is None else output.logprobs.between(0, count),
        texts=texts,
    )
