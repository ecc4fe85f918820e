"""Step time: predicts how long a step takes, cuts prompt chunks to it, and paces planning.

Sans-IO: arithmetic, times in and out.

`StepTimes` has two averages, of what a step of decodes takes and of what a token of a prompt's
chunk takes beyond that. Nothing finer is known of contexts or of how many decode: both change
slowly, and the averages follow within some steps. They rise faster than they fall, since it is the
step that takes too long that readers notice; a pause of the machine is taken for twice the average
at most. (A Kalman filter over tokens and pairs of tokens predicted to 1 %, these to 5 %. In seven
simulated loads the total time was within 0.6 % with either; the 99th percentile of first tokens is
up to 16 % longer with these where the machine pauses often, and that of steps with prompts of
12 000 tokens, at a target of 0.5 s, is 0.59 s, not 0.53 s.)

`TimeBudget` cuts the chunks of one step. Decodes come first: their time is taken off before the
first chunk is cut, and they are never cut. Progress: the first chunk of a step has at least
`CHUNK_MIN` tokens, however long that takes; so a target that is too small slows prompts down and
stops none.

`StepPace` says how early the next step is planned while one computes. What is planned is fixed: a
request that comes afterwards waits for the step after. So a long step is followed by the plan of
the next one as late as leaves time to hand it over before the workers want it. A prediction that is
too long costs that time and no more, as a result is waited for as well.
"""

import math

import attrs

# Weight of the newest step in an average, above it and below it.
RISE, FALL = 0.5, 0.125
# A step that takes longer than so many times the average counts as that.
CLIP = 2.0
# The quickest of so many counts at first: a pause may be among them.
FIRST = 3
# Steps before anything is predicted: the first are slow in their own ways.
STEPS_MIN = 8
# At least this share of a step's time is its chunks', whatever decodes took lately.
CHUNK_SHARE_MIN = 0.1
# Fewer tokens of a prompt cost as much: a step reads all weights for any of them. A block's worth.
CHUNK_MIN = 16
# Planning, encoding and handing over takes some 0.3 ms, and a busy machine wakes a task late.
LEAD_S = 0.002
# Share of the predicted time that is waited: steps of one kind vary, on a shared machine the more.
SHARE = 0.75
# A shorter wait is not worth waking up for once more, which costs an engine some 0.2 ms of its
# core, or of one that computes: a reader does not notice to be in a step so much later.
DELAY_MIN_S = 0.005


@attrs.define(eq=False)
class _Average:
    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        if self.count < FIRST:
            self.value = min(value, self.value) if self.count else value
        else:
            value = min(value, CLIP * self.value)
            self.value += (RISE if value > self.value else FALL) * (value - self.value)
        self.count += 1


@attrs.define(eq=False)
class StepTimes:
    """Seconds of a step: those of its decodes, and so many for each token of its chunks."""

    _decode: _Average = attrs.field(factory=_Average, init=False)
    _token: _Average = attrs.field(factory=_Average, init=False)

    @property
    def is_ready(self) -> bool:
        """Whether enough steps were seen to predict another."""
        return self._decode.count + self._token.count >= STEPS_MIN

    @property
    def is_learning(self) -> bool:
        """Whether steps are timed, but too few were seen yet to predict another."""
        return 0 < self._decode.count + self._token.count < STEPS_MIN

    def learn(self, chunk_tokens: int, seconds: float) -> None:
        """A step with so many tokens in chunks has taken so long.

        What is no time is passed over: executors that do not say, clocks that jump.
        """
        if not 0.0 < seconds < math.inf:
            return
        if not chunk_tokens:
            self._decode.add(seconds)
            return
        # Decodes take no longer than the whole, or chunks would stay small that could be large.
        self._decode.value = min(self._decode.value, seconds)
        of_chunks = max(seconds - self._decode.value, CHUNK_SHARE_MIN * seconds)
        self._token.add(of_chunks / chunk_tokens)

    def predict(self, chunk_tokens: int) -> float:
        """Seconds that such a step takes; 0 where too few steps, or none of its kind, were seen."""
        kind = self._token if chunk_tokens else self._decode
        if not (self.is_ready and kind.count):
            return 0.0
        return self._decode.value + self.of_chunk(chunk_tokens)

    def of_chunk(self, tokens: int) -> float:
        """Seconds that so many tokens of a prompt add to a step."""
        return self._token.value * tokens

    def tokens_within(self, seconds: float) -> float:
        """How many tokens of a prompt fit into so many more seconds; may be inf."""
        if not self._token.value:
            return math.inf
        return max(0.0, seconds) / self._token.value


@attrs.define(eq=False)
class TimeBudget:
    """Rest of one step's `target_s` seconds; 0 is no target."""

    times: StepTimes
    target_s: float
    # Not known before a chunk is to be cut: most steps have none.
    _left_s: float | None = attrs.field(default=None, init=False)
    _chunks: int = attrs.field(default=0, init=False)

    def is_unmeasured(self, steps_completed: int) -> bool:
        """Whether it is unknown how long a step of many tokens takes, and soon will be known.

        Of a large model the largest step could exceed what is taken for a worker's death.
        """
        return bool(self.target_s) and (not steps_completed or self.times.is_learning)

    def cut(self, count: int, kept: int = 0) -> int:
        """How many of the next `count` tokens of a request may be computed; 1 or more.

        Time for so many others is `kept`.
        """
        if not self.target_s or count == 1 or not self.times.is_ready:
            return count
        left_s = self._look()
        least = CHUNK_MIN if not self._chunks else 1
        self._chunks += 1
        fits = min(count, self.times.tokens_within(left_s) - kept)
        chosen = min(count, max(least, int(fits)))
        self._left_s = left_s - self.times.of_chunk(chosen)
        return chosen

    def has_time(self) -> bool:
        """Whether a waiting request may begin in this step."""
        return not self._chunks or self._look() > 0.0

    def _look(self) -> float:
        if self._left_s is None:
            self._left_s = self.target_s - self.times.predict(0)
        return self._left_s


@attrs.define(eq=False)
class StepPace:
    """When the step that computes was begun, and so when to plan the next."""

    # Seconds that it takes, as far as is known; 0: not known, or none computes.
    predicted_s: float = attrs.field(default=0.0, init=False)
    _delayed_until: float = attrs.field(default=-math.inf, init=False)
    _is_delayed: bool = attrs.field(default=False, init=False)
    _has_begun: bool = attrs.field(default=False, init=False)

    def begin(self, predicted_s: float, now: float) -> None:
        """The workers begin a step, as far as is known here, which takes so long; 0: not known."""
        # The first step of new workers may take longer than any other.
        self.predicted_s = predicted_s if self._has_begun else 0.0
        self._has_begun = True
        wait_s = SHARE * predicted_s - LEAD_S
        self._delayed_until = now + wait_s if wait_s >= DELAY_MIN_S else -math.inf
        self._is_delayed = False

    def is_early(self, now: float) -> bool:
        """Whether it is too early to plan another step while one computes."""
        self._is_delayed = now < self._delayed_until
        return self._is_delayed

    def next_deadline(self) -> float:
        """When to ask again, if the last answer was yes and no result comes before; inf if not."""
        return self._delayed_until if self._is_delayed else math.inf
