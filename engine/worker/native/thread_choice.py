"""Choice of the number of threads that compute a step, by the time that steps take.

Sans-IO: no clock; `NativeRunner` asks before each step and says how long it took. Bits do not
depend on the number, so it may change with every step.

Threads of one step wait for each other, so a core that another process wants, too, costs more than
it gives; and that changes with the load. The other number is *tried*: for some steps in a row,
which end as soon as they lag behind. What a try has lost is a debt, and there is no other try
before a small share of the time of all steps has paid it. So tries cost that share at most, and a
fixed time beyond it, whatever else the machine does.
"""

import attrs

# Share of the time of all steps that tries may lose.
LOSS_SHARE = 0.005
# The debt beside which the other number is tried all the same where steps have become slower than
# it was: several tries of a large model.
SLOWED_DEBT_S = 0.25
# Steps of a try, and the share of their time that it must gain: on a busy machine some in a row are
# quick by luck, between two turns of another program, which last some 3 ms.
TRY_STEPS, GAIN = 32, 0.05
# A try may lag behind by so many steps: its first one wakes or starts a thread, and has been seen
# to take three times as long.
LAG_STEPS = 4.0
# Steps between two tries: the fewest, and after tries that failed twice as many each, to the most.
WAIT_MIN, WAIT_MAX = 32, 256
# Steps that take so many times as long as the other number's have become slower than it was.
SLOWED = 1.25
# Weight of the newest time in the running mean: of some 16 steps, as single ones say little.
NEWEST = 1 / 16
# The first steps of a kind find nothing in caches: they count for nothing. Some more make a mean.
WARM_UP_STEPS, FIRST_WAIT = 2, 8


@attrs.define(eq=False)
class _Class:
    """Steps of about as many tokens; times in seconds."""

    preferred: int
    # Running mean of the preferred number's steps; 0: there was none but to warm up.
    mean_s: float = 0.0
    # Mean of the other number's last try, or before it was given up; None: not known.
    other_s: float | None = None
    warm_up: int = WARM_UP_STEPS
    steps_until_try: int = FIRST_WAIT
    wait: int = WAIT_MIN
    # The try under way.
    tried: int = 0
    tried_s: float = 0.0

    def note_preferred(self, seconds: float) -> None:
        if self.warm_up:
            self.warm_up -= 1
            return
        self.mean_s += (NEWEST if self.mean_s else 1.0) * (seconds - self.mean_s)
        self.steps_until_try = 0 if self.has_slowed() else max(0, self.steps_until_try - 1)

    def has_slowed(self) -> bool:
        return self.other_s is not None and self.mean_s > SLOWED * self.other_s

    def note_try(self, seconds: float) -> float | None:
        """Seconds that the try has lost, negative if it was quicker; None: it goes on."""
        self.tried, self.tried_s = self.tried + 1, self.tried_s + seconds
        lag_s = self.tried_s - self.tried * self.mean_s
        if lag_s <= LAG_STEPS * self.mean_s and self.tried < TRY_STEPS:
            return None
        self.other_s = self.tried_s / self.tried
        self.tried, self.tried_s = 0, 0.0
        self.wait = min(2 * self.wait, WAIT_MAX)
        return lag_s

    def swap(self, other: int) -> None:
        """The try has shown that the other number is quicker."""
        assert self.other_s is not None
        self.preferred, self.wait = other, WAIT_MIN
        self.mean_s, self.other_s = self.other_s, self.mean_s


@attrs.define(eq=False)
class ThreadChoice:
    """Between `most` threads and one fewer, where that leaves any: whichever has been quicker.

    Steps are compared with those of about as many tokens alone; the debt is one for all.
    """

    most: int
    fixed: bool
    _classes: dict[int, _Class] = attrs.field(factory=dict, init=False)
    _debt_s: float = attrs.field(default=0.0, init=False)

    def threads(self, tokens: int) -> int:
        """Threads for a step that computes so many tokens."""
        if self.fixed or self.most == 1:
            return self.most
        found = self._class(tokens)
        debt_max_s = SLOWED_DEBT_S if found.has_slowed() else 0.0
        begins = found.steps_until_try == 0 and self._debt_s <= debt_max_s
        return self._other(found.preferred) if begins or found.tried else found.preferred

    def note(self, tokens: int, threads: int, seconds: float) -> None:
        """The step that was asked about took so long."""
        if self.fixed or self.most == 1:
            return
        found = self._class(tokens)
        self._debt_s = max(0.0, self._debt_s - LOSS_SHARE * seconds)
        if threads == found.preferred:
            found.note_preferred(seconds)
        elif (lag_s := found.note_try(seconds)) is not None:
            if lag_s < -GAIN * TRY_STEPS * found.mean_s:
                found.swap(threads)
            self._debt_s += max(0.0, lag_s)
            found.steps_until_try = found.wait

    def check_invariants(self) -> None:
        """Assert what must hold between any two calls."""
        assert self._debt_s >= 0.0
        for found in self._classes.values():
            assert found.preferred in (self.most, self.most - 1)
            assert 0 <= found.steps_until_try <= found.wait <= WAIT_MAX
            assert 0 <= found.tried < TRY_STEPS
            assert found.tried == 0 or found.steps_until_try == 0

    def _class(self, tokens: int) -> _Class:
        size = tokens.bit_length()
        if size not in self._classes:
            self._classes[size] = _Class(self.most)
        return self._classes[size]

    def _other(self, threads: int) -> int:
        return 2 * self.most - 1 - threads
