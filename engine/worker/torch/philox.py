"""Philox4x32-10: random numbers as a pure function of a key and a counter, on any device.

The generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011): no state, no
order, so any token's numbers can be had alone. Torch has no unsigned 32-bit products; 64-bit signed
ones wrap around and their halves are masked out. Must not know tokens or seeds.
"""

from torch import Tensor

ROUNDS = 10
# Multipliers and the key's increments, from the paper (golden ratio and sqrt(3) - 1, times 2**32).
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_LOW_32_BITS = 0xFFFFFFFF

Words4 = tuple[Tensor, Tensor, Tensor, Tensor]


def philox4x32(counter: Words4, key: tuple[Tensor, Tensor]) -> Words4:
    """Four words of 32 random bits for each element.

    All tensors are int64 with values from 0 to 2**32 - 1 and broadcast against each other.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for number in range(ROUNDS):
        if number:
            k0 = (k0 + _INCREMENTS[0]) & _LOW_32_BITS
            k1 = (k1 + _INCREMENTS[1]) & _LOW_32_BITS
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0 = _high(second) ^ c1 ^ k0
        c1 = second & _LOW_32_BITS
        c2 = _high(first) ^ c3 ^ k1
        c3 = first & _LOW_32_BITS
    return c0, c1, c2, c3


def _high(product: Tensor) -> Tensor:
    return (product >> 32) & _LOW_32_BITS
