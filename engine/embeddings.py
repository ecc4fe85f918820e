"""Prompt embeddings: what they must be, checked on both sides of the wire.

Sans-IO: pure functions. Such a prompt is one row of the hidden state for each token, as the first
layer reads it; its token ids are placeholders (`PLACEHOLDER_ID`), so that everything that counts
tokens need not know of it.
"""

from collections.abc import Sequence

import attrs

from ..transports.array import ITEM_BYTES, Array
from .errors import InvalidParameter

PARAMETER = "prompt_embeds"
# Types of a row. Both become float32 exactly, which is what the hidden state is.
DTYPES = ("float32", "bfloat16")
# Any id that each model has; nothing looks it up.
PLACEHOLDER_ID = 0
# Limit of one request, its choices together: 3072 tokens of 4096 float32. A message may have 64 MiB
# (`transports.codec.CodecLimits`), which leaves room for ids and parameters.
REQUEST_BYTES_MAX = 48 * 2**20
# Limit of one step to the workers; a message larger than 256 MiB does not pass the ring.
STEP_BYTES_MAX = 192 * 2**20
# The top byte of a float whose exponent may be all ones (no number); the sign is the highest bit.
_TOP_BYTES = (0x7F, 0xFF)


@attrs.frozen
class EmbeddingLimits:
    """Limits of embeddings; `hidden_size` 0: none. A step computes at most `step_tokens`."""

    hidden_size: int = 0
    step_tokens: int = 0

    def check(self, embeds: Array, tokens: int) -> None:
        """Raises `InvalidParameter` unless these are embeddings of so many tokens of this model."""
        if self.hidden_size == 0:
            raise InvalidParameter(PARAMETER, "is not served with this model and executor")
        most = STEP_BYTES_MAX // (self.hidden_size * ITEM_BYTES["float32"])
        if self.step_tokens > most:
            reason = f"is not served while max_num_batched_tokens is above {most}"
            raise InvalidParameter(PARAMETER, reason)
        check_form(embeds)
        if embeds.shape != (tokens, self.hidden_size):
            shape = " × ".join(map(str, embeds.shape))
            reason = f"must have the shape {tokens} × {self.hidden_size} here, not {shape}"
            raise InvalidParameter(PARAMETER, reason)


def check_dimensions(shape: Sequence[int]) -> None:
    """Raises `InvalidParameter` unless it is one of tokens and hidden size."""
    if len(shape) != 2:
        reason = f"must have two dimensions (tokens, hidden size), not {len(shape)}"
        raise InvalidParameter(PARAMETER, reason)


def check_form(embeds: Array) -> None:
    """Raises `InvalidParameter` unless type, dimensions and size are those of embeddings."""
    if embeds.dtype not in DTYPES:
        reason = f"must be {' or '.join(DTYPES)}, not {embeds.dtype}"
        raise InvalidParameter(PARAMETER, reason)
    check_dimensions(embeds.shape)
    if embeds.data.nbytes > REQUEST_BYTES_MAX:
        reason = f"must have at most {REQUEST_BYTES_MAX} bytes, not {embeds.data.nbytes}"
        raise InvalidParameter(PARAMETER, reason)


def check_finite(embeds: Array) -> None:
    """Raises `InvalidParameter` if some number is none. About a nanosecond for each number.

    A number has an exponent that is not all ones: those bits are the lower seven of the top byte
    and the highest of the byte below. The first alone are rare enough to be looked for first.
    """
    item = ITEM_BYTES[embeds.dtype]
    top = embeds.data[item - 1 :: item].tobytes()
    if not any(byte in top for byte in _TOP_BYTES):
        return
    below = embeds.data[item - 2 :: item].tobytes()
    for place, byte in enumerate(top):
        if byte in _TOP_BYTES and below[place] & 0x80:
            row, column = divmod(place, embeds.shape[1])
            reason = f"must be numbers: that of token {row}, column {column}, is none"
            raise InvalidParameter(PARAMETER, reason)


def rows_of(embeds: Array, begin: int, end: int) -> memoryview:
    """The bytes of rows [begin, end); a view."""
    row_bytes = embeds.data.nbytes // embeds.shape[0]
    return embeds.data[begin * row_bytes : end * row_bytes]
