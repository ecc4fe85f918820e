"""Silence of a peer: when to ask one that says nothing, and when to call it silent.

Between machines a cut cable is no event for who only receives. So a peer that has said nothing for
`silence_probe_s` is asked, again and again; with several questions unanswered it is *silent*, until
anything comes from it. Questions are counted, and no time is: a loop that was late itself has asked
once, and finds the answer waiting. Silence proves no death: it says whom not to rely on now.

Sans-IO: times in, findings out. `link` asks by a PROBE, and says what was found.
"""

import enum
import math

import attrs

from .link_header import LinkSettings


class SilenceFinding(enum.Enum):
    """Result of a look at a peer."""

    ASK = "ask"  # it has said nothing for long: ask it, again if it was asked
    SILENT = "silent"  # as many questions as are allowed were not answered: ask on
    HEARD = "heard"  # it was silent, and is no more
    NEWS = "news"  # it spoke lately


@attrs.define(eq=False)
class SilenceWatch:
    """Watch over one peer, whatever generation its link is in."""

    settings: LinkSettings
    is_silent: bool = attrs.field(default=False, init=False)
    # When anything came of the peer; written for every message, so without a call.
    heard_at: float = attrs.field(default=-math.inf, init=False)
    # When to look next; inf before `begin`, and where silence is no concern.
    look_at: float = attrs.field(default=math.inf, init=False)
    # When it was asked last, or the watch began; and questions since it was heard.
    _looked_at: float = attrs.field(default=-math.inf, init=False)
    _asked: int = attrs.field(default=0, init=False)

    def begin(self, now: float) -> None:
        """Watch from now on; harmless when it watches."""
        if self.look_at == math.inf:
            self.look_at = now + self.settings.silence_probe_s

    def end(self) -> None:
        """Watch no more."""
        self.look_at = math.inf

    def look(self, now: float) -> SilenceFinding:
        """Look, at `look_at` or later, which moves on."""
        interval_s = self.settings.silence_probe_s
        if self.heard_at >= self._looked_at:
            was_silent, self.is_silent, self._asked = self.is_silent, False, 0
            self.look_at = self.heard_at + interval_s
            if was_silent:
                return SilenceFinding.HEARD
            if self.look_at > now:
                return SilenceFinding.NEWS
        self._looked_at = now
        self.look_at = now + interval_s
        if self._asked < self.settings.silence_probes_max:
            self._asked += 1
            return SilenceFinding.ASK
        was_silent, self.is_silent = self.is_silent, True
        return SilenceFinding.ASK if was_silent else SilenceFinding.SILENT

    @property
    def silent_s(self) -> float:
        """How long the peer had said nothing when it was asked last."""
        return self._looked_at - self.heard_at
