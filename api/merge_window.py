"""Decides how long what a response says may wait, so that more of it makes one event and one write.

Time, counted from when a connection began to be served, is cut into windows of `merge_s`; what
comes in a window is written at its end. So all lanes of a socket that ask for the same time are
written together, and connections not at the same moment. What must not wait is for whoever asks:
here a source says so by waiting 0 s.

Sans-IO: times in, times out, in seconds. Must not know lanes, sockets or what is written.
"""

import math

import attrs


@attrs.frozen
class MergeWindows:
    """The windows of one connection."""

    origin_s: float

    def end(self, merge_s: float, now: float) -> float:
        """When what came `now` is due: within `merge_s`, at once if that is 0."""
        if merge_s <= 0:
            return now
        index = math.floor((now - self.origin_s) / merge_s)
        end_s = self.origin_s + (index + 1) * merge_s
        # Rounding may put the end where we are already: that window is over.
        return end_s if end_s > now else now + merge_s
