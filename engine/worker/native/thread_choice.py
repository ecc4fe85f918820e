"""Number of threads that compute a step: all cores, or one fewer, whichever has been quicker.

Sans-IO: times in, numbers out. Threads of one step wait for each other, so a core that frontend and
engine want, too, costs more than it gives; how much they want changes with the load, and so does
what a step gains from a core. The kernels' bits do not depend on the number, so it may change with
every step. Steps are compared with those of about as many tokens alone.
"""

import attrs

# The other number is tried once in so many steps, which costs at most this share of its loss; more
# often while the two are close.
TRY_EVERY, TRY_EVERY_CLOSE = 256, 32
CLOSE = 1.25
# Weight of the newest time in the running mean: a change of load is seen within a few steps, and
# the other number is tried at once when steps become slower than it was.
NEWEST = 0.25


@attrs.define(eq=False)
class _Class:
    """Steps of about as many tokens. `means` are seconds of a step by number of threads."""

    preferred: int
    means: dict[int, float] = attrs.field(factory=dict)
    steps_until_try: int = 2  # the first ones warm up


@attrs.define(eq=False)
class ThreadChoice:
    """Between `most` threads and one fewer, where that leaves any."""

    most: int
    fixed: bool
    _classes: dict[int, _Class] = attrs.field(factory=dict, init=False)

    def threads(self, tokens: int) -> int:
        """For a step that computes so many tokens."""
        if self.fixed or self.most == 1:
            return self.most
        found = self._class(tokens)
        if found.steps_until_try == 0:
            return self._other(found.preferred)
        return found.preferred

    def note(self, tokens: int, threads: int, seconds: float) -> None:
        """The step that was asked about took so long."""
        if self.fixed or self.most == 1:
            return
        found = self._class(tokens)
        other = found.means.get(self._other(found.preferred))
        if threads == found.preferred:
            before = found.means.get(threads, seconds)
            found.means[threads] = before + NEWEST * (seconds - before)
            worse = other is not None and found.means[threads] > CLOSE * other
            found.steps_until_try = 0 if worse else max(0, found.steps_until_try - 1)
            return
        found.means[threads] = seconds  # what it took long ago says nothing of now
        if seconds < found.means.get(found.preferred, 0.0):
            found.preferred = threads
        found.steps_until_try = TRY_EVERY_CLOSE if self._is_close(found) else TRY_EVERY

    def check_invariants(self) -> None:
        """What must hold between any two calls."""
        for found in self._classes.values():
            assert found.preferred in (self.most, self.most - 1)
            assert set(found.means) <= {self.most, self.most - 1}
            assert 0 <= found.steps_until_try <= TRY_EVERY

    def _class(self, tokens: int) -> _Class:
        size = tokens.bit_length()
        if size not in self._classes:
            self._classes[size] = _Class(self.most)
        return self._classes[size]

    def _other(self, threads: int) -> int:
        return 2 * self.most - 1 - threads

    def _is_close(self, found: _Class) -> bool:
        slow, fast = max(found.means.values()), min(found.means.values())
        return slow < CLOSE * fast
