"""Figures of repeated runs: medians with their spread, and ratios of runs that were interleaved.

Sans-IO: numbers in, numbers out. Neighbours on a machine slow two runs that follow each other by
about the same, so a ratio is taken run by run, and the median of ratios is what is told. Must not
know what was measured.
"""

import math
import statistics
from collections.abc import Sequence

import attrs


@attrs.frozen
class Series:
    """The same figure of some runs. All NaN without any."""

    median: float
    least: float
    most: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Series":
        """Sum up values of any order."""
        if not values:
            return cls(math.nan, math.nan, math.nan, 0)
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, digits: int = 0) -> str:
        """As a table has it: the median, and the spread if there were several runs."""
        if self.runs == 0:
            return ""
        if self.runs == 1:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} [{self.least:.{digits}f}..{self.most:.{digits}f}]"


NO_SERIES = Series.of(())


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Series:
    """Of runs in pairs: ours by theirs."""
    return Series.of([our / their for our, their in zip(ours, theirs, strict=True)])
