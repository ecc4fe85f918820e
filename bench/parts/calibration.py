"""Makes figures of different machines comparable: how much slower this one is, now.

Targets in absolute microseconds or requests a second were set on one machine. What bounds them is
Python and trio, so building blocks of trio are measured beside and between the rounds of a
benchmark and compared with what they took there. A *take* is one measurement of all blocks. Figures
are scaled by the block that this machine slows down least: how the others were measured there is
not on record, and a mean of all called figures met that their code, on a machine nearly as fast as
the targets', had missed. Scaling knows CPU time only: where neighbours kept processes waiting,
rates are lower still; so it is told what share of a processor a take had.

Sans-IO: takes in, figures and lines out. Must not know how blocks are measured, or what is scaled.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

import attrs

# {building block: µs of CPU on the machine of the targets}. Medians of the project's reference
# figures of trio ("trio facts", column trio): two cores of a virtual machine, Python 3.11.7, trio
# 0.35.0. Only the names of the rows are on record, so that each block here is our reading of one;
# where the readings differ from theirs, the spread of the blocks shows it.
REFERENCE_US = {
    "checkpoint alone": 2.5,
    "spawn and exit": 5.9,
    "nursery with one child": 13.0,
    "channel hop, capacity 64": 5.2,
    "send_nowait and receive_nowait": 0.21,
    "event wake, one way": 3.5,
    "cancel scope": 3.2,
}


@attrs.frozen
class Take:
    """One measurement: {building block: µs of CPU}, and the share of a processor that it had."""

    cpu_us: Mapping[str, float]
    share: float

    def factor(self) -> float:
        """The geometric mean of the blocks' ratios: how the machine drifts from take to take."""
        ratios = [self.cpu_us[block] / us for block, us in REFERENCE_US.items()]
        return statistics.geometric_mean(ratios)


@attrs.frozen
class Target:
    """What a figure should be on the machine of the targets: at most so much, or at least."""

    value: float
    at_least: bool = False

    def scale(self, raw: float, factor: float) -> float:
        """What the machine of the targets would have made of it: costs shrink, rates grow."""
        return raw * factor if self.at_least else raw / factor

    def is_met(self, figure: float) -> bool:
        """Whether the figure is good enough."""
        return figure >= self.value if self.at_least else figure <= self.value

    def verdict(self, raw: float, factor: float) -> str:
        """The raw figure has been printed; what follows it on its line. NaN is not scaled by."""
        sign, bound = ("×", "≥") if self.at_least else ("÷", "≤")
        judged = f"target {bound} {self.value:g}: raw {_word(self.is_met(raw))}"
        if math.isnan(factor):
            return f"not scaled, as the machine's floor is not known; {judged}"
        scaled = self.scale(raw, factor)
        digits = 0 if abs(scaled) >= 100 else 2
        verdict = _word(self.is_met(scaled))
        return f"{sign} {factor:.2f} = {scaled:.{digits}f}; {judged}, scaled {verdict}"


@attrs.define(eq=False)
class Calibration:
    """The takes around the rounds of one figure."""

    takes: list[Take] = attrs.field(factory=list)

    def add(self, take: Take) -> None:
        """One more, before, between or after rounds."""
        self.takes.append(take)

    def factor(self) -> float:
        """This machine's CPU time by that of the targets' machine: of the least slowed block."""
        return min(block_ratios(self.takes).values())

    def describe(self) -> str:
        """One line: the factor, how it drifted, and which blocks differ most."""
        drift = [take.factor() for take in self.takes]
        by_block = block_ratios(self.takes)
        share = statistics.median(take.share for take in self.takes)
        least, most = (
            min(by_block, key=by_block.__getitem__),
            max(by_block, key=by_block.__getitem__),
        )
        return (
            f"calibration: this machine takes at least {self.factor():.2f} × the CPU of the"
            f" targets' one (all blocks {min(drift):.2f} to {max(drift):.2f} in {len(drift)} takes;"
            f" {by_block[least]:.2f} {least} to {by_block[most]:.2f} {most};"
            f" takes had {share * 100:.0f} % of a processor)"
        )


def block_ratios(takes: Sequence[Take]) -> dict[str, float]:
    """{building block: its median ratio over the takes}."""
    return {
        block: statistics.median(take.cpu_us[block] for take in takes) / us
        for block, us in REFERENCE_US.items()
    }


def _word(is_met: bool) -> str:
    return "met" if is_met else "missed"
