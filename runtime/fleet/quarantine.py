"""Quarantine: which requests are suspected of an engine's death, and which are refused for it.

Sans-IO: deaths with their batches, and `now` in; suspects and refusals out. The root keeps one, and
tells frontends with membership. Requests are known by their content: the same prompt of the same
principal, however often it is sent.

A death that was a step's fault makes suspects of all in the steps in flight. A suspect runs alone
until it is past the position at which it died. If it dies alone, that is a strike, and what it was
suspected of is confirmed, and one more: two strikes end it. Nothing is confirmed of one that has
gone on from a death elsewhere, since its deaths have more than one cause, unless another was ended
for that death. A suspect that passes alone is acquitted: it died of its company, or of the engine.

Deaths in company refuse nobody by their number: three that meet the same streams at three positions
say more about a machine, a kernel or an operator than about any prompt. Only a *group* is ended:
the same two or more, at the same position, in three deaths. Each of a group passes alone, so that
nothing else ends a client who sends it again and again, which would use up the engine's restarts.
A stream that goes on from a death has passed its position, so it never dies there a second time;
whoever does was sent again.

One that is ended *explains* deaths: those of it alone, and those in company at its position or that
it has not passed since. They were its, so no engine is given up for them. A death for which nobody
is ended remains the engine's.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Set

import attrs

STRIKES_MAX = 2
DEATHS_IN_COMPANY_MAX = 3
# Two steps may be in flight, so one fault is met one token later or earlier. No more: a stream that
# has passed a death is two tokens past it when it can die again.
SAME_POSITION_TOKENS = 1
# Long enough that clients have stopped to send it again, short enough for a prompt that is in order
# and was met by a fault of ours.
EXPIRY_S = 600.0
# Limit of each table; the oldest go first. A death has as many suspects as a step has rows.
CONTENTS_MAX = 4096
# Deaths in company that are remembered: some for each of several groups, and for the machine's own.
DEATHS_MAX = 16


@attrs.frozen
class Suspect:
    """Suspect of having ended an engine when it had `position` tokens; 0: it has passed since."""

    position: int
    # The lives of engines that it ended alone: each is a strike.
    alone: tuple[int, ...] = ()
    # The lives that ended in a step of several with it, which it has not passed since.
    company: tuple[int, ...] = ()
    until: float = 0.0


@attrs.frozen
class Findings:
    """Refusals after a death, and the lives of engines that they explain."""

    # Contents that are refused from now on.
    refused: list[bytes]
    # The lives of engines that these ended, or one that had been refused before.
    explained: Set[int]


@attrs.frozen
class SharedDeath:
    """An engine's death in a step of several, with the positions at which they were."""

    positions: Mapping[bytes, int]
    until: float
    life: int

    def at_same_position(self, positions: Mapping[bytes, int]) -> set[bytes]:
        """Contents that were in this death, too, where they are now."""
        return {
            content
            for content in self.positions.keys() & positions.keys()
            if abs(self.positions[content] - positions[content]) <= SAME_POSITION_TOKENS
        }


@attrs.define(eq=False)
class Quarantine:
    """`suspects` and `refused` hold what has not expired at the last event."""

    suspects: dict[bytes, Suspect] = attrs.field(factory=dict, init=False)
    # {content: until when}.
    refused: dict[bytes, float] = attrs.field(factory=dict, init=False)
    # Deaths in company, the oldest first.
    _deaths: deque[SharedDeath] = attrs.field(factory=lambda: deque(maxlen=DEATHS_MAX), init=False)

    def handle_death(self, positions: dict[bytes, int], now: float, life: int) -> Findings:
        """An engine's `life` ended in a step with these, at these positions."""
        self.handle_timeout(now)
        is_alone = len(positions) == 1
        # {who is ended now: the lives that it ended}. What is refused another engine had still.
        ended = self._group(positions, life)
        explained = {life} if self.refused.keys() & positions.keys() else set()
        for content, position in positions.items():
            if content in self.refused or content in ended:
                continue
            before = self.suspects.get(content, Suspect(0))
            alone, company = before.alone, before.company
            if is_alone:
                alone += (life,)
            else:
                company = (*company, life)[-DEATHS_MAX:]
            is_confirmed = (
                is_alone
                and position <= before.position
                and not self._has_outlived(content, position)
            )
            latest = max(position, before.position)
            suspect = Suspect(latest, alone, company, now + EXPIRY_S)
            if is_confirmed or len(alone) >= STRIKES_MAX:
                ended[content] = [*alone, *self._forget_deaths_of(content, position, suspect)]
            else:
                self.suspects.pop(content, None)  # the latest stand last
                self.suspects[content] = suspect
        for content in ended:
            self.suspects.pop(content, None)
            self.refused[content] = now + EXPIRY_S
        if len(positions) > 1:
            self._deaths.append(SharedDeath(positions, now + EXPIRY_S, life))
        for table in (self.suspects, self.refused):
            for content in list(table)[: max(0, len(table) - CONTENTS_MAX)]:
                del table[content]
        return Findings(list(ended), explained.union(*ended.values()))

    def _forget_deaths_of(self, content: bytes, position: int, suspect: Suspect) -> list[int]:
        """Deaths in company that this one, which has died alone, explains: they say nothing of the
        others. Returns the lives that ended so.
        """
        here = {content: position}
        explained = [
            each
            for each in self._deaths
            if each.life in suspect.company or each.at_same_position(here)
        ]
        for death in explained:
            self._deaths.remove(death)
        return [death.life for death in explained]

    def _has_outlived(self, content: bytes, position: int) -> bool:
        """Whether it went on from a death in company before this position: two causes."""
        last = position - SAME_POSITION_TOKENS
        return any(death.positions.get(content, position) < last for death in self._deaths)

    def _group(self, positions: dict[bytes, int], life: int) -> dict[bytes, list[int]]:
        """Contents that died at this position, together with others that did, often enough; and the
        lives that ended so."""
        lives: defaultdict[bytes, list[int]] = defaultdict(lambda: [life])
        for death in self._deaths:
            if len(group := death.at_same_position(positions)) > 1:
                for content in group - self.refused.keys():
                    lives[content].append(death.life)
        return {c: lives[c] for c in sorted(lives) if len(lives[c]) >= DEATHS_IN_COMPANY_MAX}

    def handle_passed(self, positions: dict[bytes, int], now: float) -> bool:
        """Note contents that ran alone up to here; whether any was suspected of no more."""
        self.handle_timeout(now)
        found = {content: self.suspects.get(content, Suspect(0)) for content in positions}
        passed = {
            content: attrs.evolve(suspect, position=0, company=())
            for content, suspect in found.items()
            if 0 < suspect.position <= positions[content]
        }
        self.suspects |= passed
        for content, suspect in passed.items():
            if not suspect.alone:
                del self.suspects[content]
        return bool(passed)

    def handle_timeout(self, now: float) -> None:
        """Forget what has expired. Harmless when called early."""
        self.suspects = {c: each for c, each in self.suspects.items() if each.until > now}
        self.refused = {content: until for content, until in self.refused.items() if until > now}
        while self._deaths and self._deaths[0].until <= now:
            self._deaths.popleft()

    def check_invariants(self) -> None:
        """Nothing is both suspected and refused, and no suspect should be."""
        assert not set(self.suspects) & set(self.refused)
        for suspect in self.suspects.values():
            assert suspect.position > 0 or suspect.alone, "an acquitted one is no suspect"
            assert len(suspect.alone) < STRIKES_MAX
        assert max(len(self.suspects), len(self.refused)) <= CONTENTS_MAX
        assert all(len(death.positions) > 1 for death in self._deaths)
