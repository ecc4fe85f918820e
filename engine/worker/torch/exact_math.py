"""The logarithm and a bound that sampling is specified with: the same bits on every machine.

Libraries differ in the last bit of theirs, and a drawn token may hang on it. This one is float64
additions, products and divisions in a fixed order, each rounded by itself, so any language gets its
bits. Must not know what is sampled.
"""

import math

# A temperature below this is greedy; vLLM's bound: a division would overflow before it made any
# difference.
GREEDY_BELOW = 1e-5
LN_2 = 0.6931471805599453
SQRT_HALF = 0.7071067811865476
# log((1 + s) / (1 - s)) = 2 (s + s**3 (1/3 + s**2/5 + …)); s**2 < 0.03, so this many reach 1e-17.
_SERIES = tuple(1.0 / divisor for divisor in range(21, 2, -2))


def exact_log(value: float) -> float:
    """Natural logarithm of a normal, positive number, to about an ulp.

    `value` = m · 2**k with m from sqrt(1/2) to sqrt(2); s = (m - 1) / (m + 1); p is the series in
    s·s by Horner; the result is k·ln 2 + 2·(s + (s·s²)·p), s² being s·s rounded.
    """
    mantissa, exponent = math.frexp(value)
    if mantissa < SQRT_HALF:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = _SERIES[0]
    for coefficient in _SERIES[1:]:
        series = series * square + coefficient
    return exponent * LN_2 + 2.0 * (s + s * square * series)
