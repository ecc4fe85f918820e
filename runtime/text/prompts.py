"""Prompts: text, token ids, a conversation, or embeddings.

Embeddings are one immutable block of bytes, copied once from whatever array or tensor the caller
holds and checked as far as can be without a model. No tensor library is imported: arrays are read
by the buffer protocol, tensors by their address.
"""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs
import msgspec

from ...engine.embeddings import DTYPES, PARAMETER, check_dimensions, check_finite, check_form
from ...engine.errors import InvalidParameter
from ...transports.array import Array

# float32 in the machine's order, which is little endian (`platform`).
_BUFFER_FORMATS = ("f", "<f", "=f", "@f")


def _as_bytes(data: bytes | bytearray | memoryview) -> bytes:
    return data if isinstance(data, bytes) else memoryview(data).tobytes()


def _two(shape: Sequence[int]) -> tuple[int, int]:
    check_dimensions(shape)
    return (shape[0], shape[1])


@attrs.frozen
class PromptEmbeds:
    """A prompt of (tokens, hidden size) numbers, float32 or bfloat16, row-major, little endian.

    They are taken as the hidden state is when the first layer begins: where a family scales what it
    looks up (Gemma), the scale is in them already. Raises `InvalidParameter`, also for numbers that
    are not finite.
    """

    data: bytes = attrs.field(converter=_as_bytes, repr=False)
    shape: tuple[int, int] = attrs.field(converter=_two)
    dtype: str = "float32"

    def __attrs_post_init__(self) -> None:
        try:
            array = self.array
        except ValueError as error:
            raise InvalidParameter(PARAMETER, f"is no array: {error}") from error
        check_form(array)
        if not array.data.nbytes:
            raise InvalidParameter(PARAMETER, "must have at least one token")
        check_finite(array)

    @classmethod
    def of(cls, values: Any) -> Self:
        """A copy of an array that has the buffer protocol (numpy's), or of a torch tensor.

        A tensor may be on any device and may need a gradient. Raises `InvalidParameter`.
        """
        if hasattr(values, "data_ptr"):
            return cls._of_tensor(values)
        try:
            view = memoryview(values)
        except TypeError as error:
            reason = f"must be a float32 array or a tensor, not {type(values).__name__}"
            raise InvalidParameter(PARAMETER, reason) from error
        if view.format not in _BUFFER_FORMATS:
            reason = f"must be {' or '.join(DTYPES)}, not of the buffer format {view.format!r}"
            raise InvalidParameter(PARAMETER, reason)
        return cls(view.tobytes(), _two(view.shape or ()))

    @classmethod
    def _of_tensor(cls, tensor: Any) -> Self:
        tensor = tensor.detach().cpu().contiguous()
        dtype = str(tensor.dtype).rpartition(".")[2]
        shape = _two(tuple(tensor.shape))
        if dtype not in DTYPES:
            raise InvalidParameter(PARAMETER, f"must be {' or '.join(DTYPES)}, not {dtype}")
        size = tensor.numel() * tensor.element_size()
        return cls(ctypes.string_at(tensor.data_ptr(), size), shape, dtype)

    @property
    def tokens(self) -> int:
        """How many tokens the prompt has."""
        return self.shape[0]

    @property
    def array(self) -> Array:
        """View for the wire."""
        return Array(self.dtype, self.shape, self.data)

    def last(self, tokens: int) -> "PromptEmbeds":
        """The prompt's end of so many tokens, or all of it."""
        kept = min(tokens, self.tokens)
        row_bytes = len(self.data) // self.tokens
        return attrs.evolve(self, data=self.data[-kept * row_bytes :], shape=(kept, self.shape[1]))


@attrs.frozen
class ChatPrompt:
    """A conversation; the model's chat template renders it.

    `messages` are dictionaries with `role` and `content` (other keys are the template's affair).
    `tools` are JSON schemas that the template may show to the model. `arguments` are variables that
    it may look at, such as `enable_thinking`.
    """

    messages: list[dict[str, Any]]
    add_generation_prompt: bool = True
    tools: list[dict[str, Any]] | None = None
    arguments: Mapping[str, str | int | float | bool | None] | None = None

    def known_by(self) -> bytes:
        """Bytes that are the same of the same conversation, as it comes from JSON."""
        values = (self.messages, self.add_generation_prompt, self.tools, self.arguments)
        try:
            return msgspec.msgpack.encode(values)
        except (TypeError, ValueError, OverflowError):  # a large number, half of a surrogate pair
            return repr(values).encode(errors="surrogatepass")


# Text, token ids, a conversation, or what the first layer reads of its tokens.
Prompt = str | Sequence[int] | ChatPrompt | PromptEmbeds
