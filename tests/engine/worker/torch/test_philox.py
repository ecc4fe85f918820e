"""Philox against the published answers, and against plain Python integers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.worker.torch.philox import philox4x32

from .. import specified_sampler

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


def test_broadcasts() -> None:
    zero = torch.tensor(0)
    words = philox4x32((torch.arange(6).view(3, 2), zero, zero, zero), (zero, zero))
    assert [word.shape for word in words] == [(3, 2)] * 4
    assert words[2][1, 1] == philox((3, 0, 0, 0), (0, 0))[2]
