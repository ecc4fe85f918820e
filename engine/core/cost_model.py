"""Predicts how long a step takes, from what it computes, as learned from the steps before.

Sans-IO: arithmetic. Seconds are a linear function of three counts, found by a Kalman filter whose
coefficients drift: what a step costs anyhow (weights are read once), what each token costs
(products), and what each pair of a token and one before it costs (attention). A machine is shared
and steps are held up now and then: a residual beyond `CLIP` times what was to be expected is taken
for the noisier the larger it is, so that one pause of a second moves nothing. What was to be
expected is more where little is known, as of the first prompt after many decodes, so that is learnt
at once. The first steps are learnt together, the quickest first, as a pause may be among them.
Must not know requests, or what is done with a prediction.
"""

import math

import attrs

# Variance that a coefficient gains in a step, in units of a step's noise: the filter remembers
# about a hundred steps, some seconds.
DRIFT = 1e-4
# Residuals beyond so many times the expected one count as if they were that.
CLIP = 3.0
# Until so many steps have been seen nothing is predicted: they are slow in their own ways.
STEPS_MIN = 8
# Counts are divided by these, so that all three are about 1: a chunk of tokens, and their pairs
# with a context of some hundreds.
TOKENS_SCALE = 256.0
PAIRS_SCALE = 65_536.0
# Uncertainty of a coefficient at first, and as far as drift takes it, in units of a step's noise.
VARIANCE = 100.0

Vector = tuple[float, float, float]


@attrs.define(eq=False)
class CostModel:
    """`seconds` = anyhow + tokens × per token + pairs × per pair."""

    _coefficients: Vector = attrs.field(default=(0.0, 0.0, 0.0), init=False)
    # Covariance of the coefficients: its rows from the diagonal on, as it is symmetric.
    _covariance: tuple[float, ...] = attrs.field(
        default=(VARIANCE, 0.0, 0.0, VARIANCE, 0.0, VARIANCE), init=False
    )
    # Usual size of a residual where the coefficients are known, in seconds.
    _residual: float = attrs.field(default=0.0, init=False)
    _steps: int = attrs.field(default=0, init=False)
    # Seconds, tokens and pairs of the steps seen while it is not ready.
    _first: list[tuple[float, int, int]] = attrs.field(factory=list, init=False)

    @property
    def is_ready(self) -> bool:
        """Whether enough steps were seen to predict another."""
        return self._steps >= STEPS_MIN

    @property
    def is_learning(self) -> bool:
        """Whether steps are timed, but too few were seen yet to predict another."""
        return bool(self._first)

    def learn(self, tokens: int, pairs: int, seconds: float) -> None:
        """A step of so many tokens, and pairs of one and one before it, has taken so long.

        What is no time is passed over: executors that do not say, clocks that jump.
        """
        if not 0.0 < seconds < math.inf:
            return
        if self.is_ready:
            self._update(_counts(tokens, pairs), seconds)
            return
        self._first.append((seconds, tokens, pairs))
        if len(self._first) == STEPS_MIN:
            for early_s, *counts in sorted(self._first):
                self._update(_counts(*counts), early_s)
            self._first.clear()

    def _update(self, counts: Vector, seconds: float) -> None:
        residual = seconds - _dot(self._coefficients, counts)
        v00, v01, v02, v11, v12, v22 = self._covariance
        x0, x1, x2 = counts
        s0 = v00 * x0 + v01 * x1 + v02 * x2
        s1 = v01 * x0 + v11 * x1 + v12 * x2
        s2 = v02 * x0 + v12 * x1 + v22 * x2
        unknown = s0 * x0 + s1 * x1 + s2 * x2  # variance of the prediction itself
        gain = 1.0 / (self._noise(residual, unknown, seconds) + unknown)
        c0, c1, c2 = self._coefficients
        step = gain * residual
        self._coefficients = (c0 + s0 * step, c1 + s1 * step, c2 + s2 * step)
        self._covariance = (
            _drifted(v00 - gain * s0 * s0),
            v01 - gain * s0 * s1,
            v02 - gain * s0 * s2,
            _drifted(v11 - gain * s1 * s1),
            v12 - gain * s1 * s2,
            _drifted(v22 - gain * s2 * s2),
        )
        self._steps += 1

    def predict(self, tokens: int, pairs: int) -> float:
        """Seconds that such a step takes; 0 before it `is_ready`."""
        if not self.is_ready:
            return 0.0
        return max(0.0, _dot(self._coefficients, _counts(tokens, pairs)))

    def seconds_more(self, tokens: int, context: int) -> float:
        """What a step takes longer for so many tokens more, behind a context of so many."""
        pairs = tokens * context + tokens * tokens / 2.0
        _, token_s, pair_s = self._coefficients
        return max(0.0, token_s) * tokens / TOKENS_SCALE + max(0.0, pair_s) * pairs / PAIRS_SCALE

    def tokens_within(self, seconds: float, context: int) -> float:
        """How many tokens behind a context of so many fit into so many more seconds; may be inf.

        Token i has pairs with `context + i` others: a quadratic equation.
        """
        if not self.is_ready:
            return math.inf
        if seconds <= 0.0:
            return 0.0
        pair_s = max(0.0, self._coefficients[2]) / PAIRS_SCALE
        token_s = max(0.0, self._coefficients[1]) / TOKENS_SCALE + pair_s * context
        below = token_s + math.sqrt(token_s * token_s + 2.0 * pair_s * seconds)
        return 2.0 * seconds / below if below > 0.0 else math.inf

    def _noise(self, residual: float, unknown: float, seconds: float) -> float:
        """Variance of the step's noise, 1 for most; what is usual follows."""
        size, spread = abs(residual), math.sqrt(1.0 + unknown)
        noise = 1.0
        if self._steps:
            bound = CLIP * self._residual * spread
            noise, size = max(1.0, size / bound), min(size, bound)
        rate = 1.0 / min(self._steps + 1, 50)
        # Never 0, or the bound above would hold what is learnt where it is.
        self._residual += rate * (max(size / spread, 0.001 * seconds) - self._residual)
        return noise

    def check_invariants(self) -> None:
        """Fails an assertion if numbers have got out of hand."""
        assert all(math.isfinite(value) for value in self._coefficients)
        assert all(math.isfinite(value) for value in self._covariance)
        v00, v01, v02, v11, v12, v22 = self._covariance
        assert min(v00, v11, v22) > 0.0
        assert v01 * v01 <= v00 * v11 * (1 + 1e-9)
        assert v02 * v02 <= v00 * v22 * (1 + 1e-9)
        assert v12 * v12 <= v11 * v22 * (1 + 1e-9)
        assert self._residual >= 0.0


def _drifted(variance: float) -> float:
    return variance + DRIFT if variance < VARIANCE else variance


def _counts(tokens: int, pairs: int) -> Vector:
    return (1.0, tokens / TOKENS_SCALE, pairs / PAIRS_SCALE)


def _dot(one: tuple[float, ...], other: Vector) -> float:
    return one[0] * other[0] + one[1] * other[1] + one[2] * other[2]
