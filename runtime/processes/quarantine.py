"""Quarantine: which requests are suspected of an engine's death, and which are refused for it.

Sans-IO: deaths with their batches, and `now` in; suspects and refusals out. The root keeps one, and
tells frontends with membership. Requests are known by their content: the same prompt of the same
principal, however often it is sent.

A death that was a step's fault makes suspects of all in the steps in flight. A suspect runs alone
until it is past the position at which it died. If it dies alone, that is a strike, and what it was
suspected of is confirmed, and one more: two strikes end it. Those that pass alone are innocent of
what was suspected: they need not run alone any more. Their deaths are remembered: a group in which
the same ones died three times, never alone, is ended as well.
"""

import attrs

STRIKES_MAX = 2
DEATHS_IN_COMPANY_MAX = 3
# Long enough that clients have stopped to send it again, short enough for a prompt that is in order
# and was met by a fault of ours.
EXPIRY_S = 600.0
# Of each table; the oldest go first. A death has as many suspects as a step has rows.
CONTENTS_MAX = 4096


@attrs.frozen
class Suspect:
    """It may have ended an engine when it had `position` tokens; 0: it has passed since."""

    position: int
    strikes: int = 0
    deaths_in_company: int = 0
    until: float = 0.0


@attrs.define(eq=False)
class Quarantine:
    """`suspects` and `refused` hold what has not expired at the last event."""

    suspects: dict[bytes, Suspect] = attrs.field(factory=dict, init=False)
    # {content: until when}.
    refused: dict[bytes, float] = attrs.field(factory=dict, init=False)

    def handle_death(self, positions: dict[bytes, int], now: float) -> list[bytes]:
        """An engine died of a step with these, at these positions; returns who is refused now."""
        self.handle_timeout(now)
        is_alone = len(positions) == 1
        ended = []
        for content, position in positions.items():
            if content in self.refused:
                continue  # another engine had it still
            before = self.suspects.pop(content, Suspect(0))
            strikes, company = before.strikes, before.deaths_in_company
            if is_alone:
                strikes += 2 if company and position <= before.position else 1
            else:
                company += 1
            if strikes >= STRIKES_MAX or company >= DEATHS_IN_COMPANY_MAX:
                self.refused[content] = now + EXPIRY_S
                ended.append(content)
            else:
                place = max(position, before.position)
                self.suspects[content] = Suspect(place, strikes, company, now + EXPIRY_S)
        for table in (self.suspects, self.refused):
            for content in list(table)[: max(0, len(table) - CONTENTS_MAX)]:
                del table[content]
        return ended

    def handle_passed(self, positions: dict[bytes, int], now: float) -> bool:
        """These ran alone up to these positions; whether any was suspected of no more than that."""
        self.handle_timeout(now)
        found = {content: self.suspects.get(content, Suspect(0)) for content in positions}
        passed = {
            content: attrs.evolve(suspect, position=0)
            for content, suspect in found.items()
            if 0 < suspect.position <= positions[content]
        }
        self.suspects |= passed
        return bool(passed)

    def handle_timeout(self, now: float) -> None:
        """Forget what has expired. Harmless when called early."""
        self.suspects = {c: each for c, each in self.suspects.items() if each.until > now}
        self.refused = {content: until for content, until in self.refused.items() if until > now}

    def check_invariants(self) -> None:
        """Nothing is both suspected and refused, and no suspect should be."""
        assert not set(self.suspects) & set(self.refused)
        for suspect in self.suspects.values():
            assert suspect.position >= 0
            assert suspect.strikes < STRIKES_MAX
            assert suspect.deaths_in_company < DEATHS_IN_COMPANY_MAX
        assert max(len(self.suspects), len(self.refused)) <= CONTENTS_MAX
