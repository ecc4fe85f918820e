"""Embeddings from whatever the caller holds: copied once, checked, and told what is wrong."""

import struct
from typing import Any

import numpy
import pytest
import torch

from triolet.engine.errors import InvalidParameter
from triolet.runtime.text.prompts import PromptEmbeds

VALUES = numpy.arange(6, dtype=numpy.float32).reshape(2, 3) - 2.5


def test_an_array_is_copied() -> None:
    values = VALUES.copy()
    embeds = PromptEmbeds.of(values)
    values[:] = 0.0
    assert (embeds.tokens, embeds.shape, embeds.dtype) == (2, (2, 3), "float32")
    assert embeds.data == VALUES.tobytes()
    assert embeds.array.data == VALUES.tobytes()
    assert embeds == PromptEmbeds(VALUES.tobytes(), (2, 3))


def test_an_array_with_gaps_is_put_together() -> None:
    assert PromptEmbeds.of(VALUES.T).data == VALUES.T.tobytes(order="C")
    assert PromptEmbeds.of(VALUES[:, ::2]).data == VALUES[:, ::2].tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_of_either_type(dtype: torch.dtype) -> None:
    tensor = torch.from_numpy(VALUES).to(dtype)
    embeds = PromptEmbeds.of(tensor)
    assert f"torch.{embeds.dtype}" == str(dtype)
    assert embeds.data == tensor.view(torch.uint8).numpy().tobytes()
    turned = PromptEmbeds.of(tensor.T.requires_grad_())
    assert turned.shape == (3, 2)
    assert turned.data == tensor.T.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (VALUES.astype(numpy.float64), "not of the buffer format 'd'"),
        (VALUES.astype(">f4"), "not of the buffer format '>f'"),
        (VALUES[0], "must have two dimensions"),
        (VALUES[None], "must have two dimensions"),
        (VALUES[:0], "at least one token"),
        (VALUES.tolist(), "must be a float32 array or a tensor, not list"),
        (torch.zeros(2, 3, dtype=torch.float16), "must be float32 or bfloat16, not float16"),
        (torch.zeros(2), "must have two dimensions"),
        (numpy.where(VALUES == 1.5, numpy.nan, VALUES), "that of token 1, column 1, is none"),
    ],
)
def test_what_is_refused(values: Any, told: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        PromptEmbeds.of(values)
    assert caught.value.parameter == "prompt_embeds"
    assert told in caught.value.reason


def test_bytes_are_checked_like_an_array() -> None:
    with pytest.raises(InvalidParameter, match=r"is no array: .* has 24 bytes, not 20"):
        PromptEmbeds(bytes(20), (2, 3))
    with pytest.raises(InvalidParameter, match="is no array: dtype"):
        PromptEmbeds(bytes(24), (2, 3), "complex")
    with pytest.raises(InvalidParameter, match="not int32"):
        PromptEmbeds(bytes(24), (2, 3), "int32")
    with pytest.raises(InvalidParameter, match="token 0, column 1"):
        PromptEmbeds(struct.pack("<2f", 0.0, float("inf")), (1, 2))


def test_the_end_of_a_prompt() -> None:
    embeds = PromptEmbeds.of(VALUES)
    assert embeds.last(1) == PromptEmbeds.of(VALUES[1:])
    assert embeds.last(5) == embeds
