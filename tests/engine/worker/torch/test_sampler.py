"""The torch sampler: wide vocabularies, masks, random bits, logarithms and logprobs."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from triolet.engine.worker.numerics import exact_log
from triolet.engine.worker.torch import sampler
from triolet.engine.worker.torch.logprobs import logprobs_of
from triolet.engine.worker.torch.sampler import SampledRow, philox4x32, sample_tokens, unpack_mask

from ...gpu import on_gpu
from ...steps import sampling
from .. import specified_sampler
from ..sampling_cases import DISTRIBUTIONS, random_logits
from ..specified_sampler import Place, specified

DRAWS = 4000


def torch_logits(*arguments: Any, **keywords: Any) -> Tensor:
    return torch.from_numpy(random_logits(*arguments, **keywords))


def sample(logits: Tensor, *rows: SampledRow, **keywords: Any) -> list[int]:
    found = sample_tokens(logits.clone(), rows, **keywords)
    assert not found.failures
    return found.token_ids


def test_a_wide_vocabulary_is_as_specified_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "FILTER_WIDTH", 8)
    monkeypatch.setattr(sampler, "GROUP_LOGITS_MAX", 512)
    kinds: list[dict[str, Any]] = [
        {},
        {"top_k": 5},
        {"top_k": 8},
        {"top_k": 30, "top_p": 0.99},
        {"top_k": 100, "top_p": 0.5, "temperature": 5.0},
        {"top_p": 0.5},
        {"top_p": 0.9999},
        {"temperature": 0.0},
        {"min_p": 0.05, "temperature": 2.0},
    ]
    rows = [SampledRow(sampling(seed=9, **kind), i) for i, kind in enumerate(kinds)]
    logits = torch_logits(len(rows), 131, spread=1.0).round(decimals=1)
    expected = [
        specified(x, Place(row.sampling, position=row.position))
        for x, row in zip(logits.tolist(), rows, strict=True)
    ]
    assert sample(logits, *rows) == expected


@on_gpu
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1.0, 8.0])
def test_cuda_draws_and_scores_what_a_cpu_does(spread: float) -> None:
    logits = torch_logits(60, 5000, seed=3, spread=spread)
    filters: list[dict[str, Any]] = [*DISTRIBUTIONS, {"top_p": 0.95}, {"top_k": 2000, "top_p": 0.9}]
    rows = [
        SampledRow(sampling(seed=i, presence_penalty=0.3, **filters[i % len(filters)]), i, {i: 2})
        for i in range(60)
    ]
    tokens = sample(logits, *rows)
    assert sample_tokens(logits.cuda(), rows).token_ids == tokens
    found, expected = logprobs_of(logits.cuda(), tokens, 9), logprobs_of(logits, tokens, 9)
    assert found.message(0, 0) == expected.message(0, 0)


def test_a_mask_forbids() -> None:
    logits = torch_logits(2, 70)
    words = torch.zeros(2, 3, dtype=torch.int32)
    words[0, 1] = 1 << 5  # token 37
    words[1, 0] = -(2**31)  # token 31
    words[1, 2] = 0b100000  # token 69
    allowed = unpack_mask(words.numpy().tobytes(), 2, 70)
    assert allowed.nonzero().tolist() == [[0, 37], [1, 31], [1, 69]]
    for temperature in (0.0, 1.0):
        row = SampledRow(sampling(temperature=temperature), 0)
        first, second = sample(logits, row, row, forbidden_RV=~allowed)
        assert first == 37
        assert second in (31, 69)


def test_a_mask_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="mask of 4 bytes"):
        unpack_mask(b"1234", 1, 70)


ONES = 0xFFFFFFFF
WORD = st.integers(0, ONES)
# Known answers of philox4x32-10 that its authors publish with Random123: counter, key, result.
KNOWN = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (ONES, ONES, ONES, ONES),
        (ONES, ONES),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    k0, k1 = (torch.tensor([word]) for word in key)
    return tuple(int(word) for word in philox4x32((c0, c1, c2, c3), (k0, k1)))


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], result: tuple[int, ...]
) -> None:
    assert philox(counter, key) == result
    assert specified_sampler.philox(counter, key) == result


@given(counter=st.tuples(WORD, WORD, WORD, WORD), key=st.tuples(WORD, WORD))
def test_signed_arithmetic_gives_what_integers_give(
    counter: tuple[int, ...], key: tuple[int, ...]
) -> None:
    assert philox(counter, key) == specified_sampler.philox(counter, key)


@given(st.floats(1e-300, 1e300) | st.floats(0.5, 2.0))
def test_is_near_the_logarithm(value: float) -> None:
    assert math.isclose(exact_log(value), math.log(value), rel_tol=1e-15)


# Written down once, by this code: another machine that finds other bits would draw other tokens.
@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, "0x0.0p+0"),
        (2.0, "0x1.62e42fefa39efp-1"),
        (0.1, "0x1.26bb1bbb55515p+1"),
        (1.0 - 2.0**-33, "0x1.0000000040000p-33"),
        (3e-11, "0x1.83ad5ba6e84ccp+4"),
    ],
)
def test_bits(value: float, bits: str) -> None:
    assert abs(exact_log(value)) == float.fromhex(bits)


def test_is_near_the_logarithm_of_softmax() -> None:
    logits = torch.randn((5, 1000), generator=torch.Generator().manual_seed(1)) * 4
    found = logprobs_of(logits, [3, 1, 4, 1, 5], 1000)
    expected = logits.double().log_softmax(-1).gather(1, found.token_ids_RC.long()).float()
    assert torch.allclose(found.logprobs_RC, expected, rtol=0, atol=2e-6)
    assert (found.logprobs_RC[:, 1:].diff(dim=-1) <= 0).all()
