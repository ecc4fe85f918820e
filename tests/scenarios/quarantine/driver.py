"""Driver of a quarantine: deaths and progress in, who is suspected, refused and explained out."""

from collections.abc import Iterator

import attrs

from triolet.runtime.fleet.quarantine import Quarantine, Suspect

from ..suite import Driver, joined


@attrs.define(eq=False)
class QuarantineDriver(Driver):
    """A quarantine; a content is a letter, its position the number behind it."""

    machine: Quarantine = attrs.field(factory=Quarantine)

    def seen(self) -> Iterator[str]:
        """Who is suspected at which position, and who is refused."""
        self.machine.check_invariants()
        suspects = joined(
            f"{content.decode()}={suspect.position}{_strikes(suspect)}"
            for content, suspect in self.machine.suspects.items()
        )
        refused = joined(content.decode() for content in self.machine.refused)
        yield f"  suspects: {suspects or 'none'}; refused: {refused or 'none'}"

    def anew(self) -> list[str]:
        """Forget all."""
        self.machine = Quarantine()
        return []

    def death(self, life: str, *, at: str = "0", **positions: str) -> Iterator[str]:
        """A life of an engine ended in a step with these, at these positions."""
        by_content = {content.encode(): int(position) for content, position in positions.items()}
        found = self.machine.handle_death(by_content, float(at), int(life))
        refused = joined(content.decode() for content in found.refused)
        explained = joined(sorted(found.explained))
        yield f"refuse {refused or 'none'}, explains {explained or 'none'}"

    def passed(self, *, at: str = "0", **positions: str) -> Iterator[str]:
        """An engine has gone beyond these positions."""
        by_content = {content.encode(): int(position) for content, position in positions.items()}
        is_news = self.machine.handle_passed(by_content, float(at))
        yield "news" if is_news else "no news"

    def expire(self, at: str) -> list[str]:
        """The time is this."""
        self.machine.handle_timeout(float(at))
        return []


def _strikes(suspect: Suspect) -> str:
    return f" ({len(suspect.alone)} alone)" if suspect.alone else ""
