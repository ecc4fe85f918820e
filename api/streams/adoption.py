"""Requests in the journal: each as it came, so that the same reader of a successor reads it again.

Sans-IO: bytes out, and back. The runtime does not read them.
"""

import attrs
import msgspec

from ...engine.sampling_params import SamplingParams
from ...runtime.journal.records import AdmissionRecord
from ..schema.fields import JsonObject

# A whole answer without a key that may have so many tokens is gone on with by a successor. To write
# a request down takes 30 µs, 70 in a busy process: more than a short answer may cost, and that is
# soon computed again.
LONG_TOKENS = 64


@attrs.frozen(kw_only=True)
class KeptRequest:
    """The body of a request; a surface may add to it."""

    values: JsonObject
    # Whether it has an idempotency key, so that its client may ask for it again.
    is_keyed: bool = False


def kept_request(admission: AdmissionRecord) -> KeptRequest:
    """The request of this admission. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(admission.body, type=KeptRequest)


def is_long(sampling: SamplingParams, choices: int = 1) -> bool:
    """Whether it may have so many tokens that a successor is to go on with it."""
    return sampling.max_tokens is None or choices * sampling.max_tokens >= LONG_TOKENS
