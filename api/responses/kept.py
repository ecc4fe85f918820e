"""What a journal keeps of a response for a successor: its request as it came, and how it ended.

Sans-IO: a response in, notes out, and back. The runtime does not read these bytes.
"""

import attrs
import msgspec

from ...runtime.journal.journal import AdmissionNote
from ...runtime.journal.records import AdmissionRecord
from ...runtime.text.outputs import GenerationOutput
from ..openai.response_events import Ending
from ..schema.fields import JsonObject
from .history import Conversation
from .response import Response

SURFACE = "responses"


@attrs.frozen(kw_only=True)
class KeptRequest:
    """The body, which the same reader reads again, and the conversation that it continues."""

    values: JsonObject
    before: Conversation | None
    # Whether it has an idempotency key, so that its client may ask for it again.
    is_keyed: bool = False


@attrs.frozen(kw_only=True)
class KeptEnding:
    """The end, behind so many output tokens, by CLOCK_MONOTONIC."""

    ending: Ending
    token_count: int
    ended_ns: int


def note_of(response: Response) -> AdmissionNote:
    """For its admission."""
    request = response.request
    is_keyed = response.is_keyed
    kept = KeptRequest(values=request.values, before=response.before, is_keyed=is_keyed)
    return AdmissionNote(
        name=response.response_id,
        surface=SURFACE,
        body=msgspec.json.encode(kept),
        created_at=response.record.events.created_at,
        is_resumable=response.streaming or request.background or response.keep_s > 0,
    )


def kept_request(admission: AdmissionRecord) -> KeptRequest:
    """What `note_of` has noted. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(admission.body, type=KeptRequest)


def said_of(response: Response, ended_ns: int) -> bytes:
    """Of a response that has ended."""
    record = response.record
    assert record.ending is not None
    kept = KeptEnding(ending=record.ending, token_count=record.token_count, ended_ns=ended_ns)
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
