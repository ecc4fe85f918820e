"""Stop strings in a text that comes in pieces; holds back only what may belong to one.

The promise: however the text is cut into pushes, the outcome is the same; the text given out never
contains a stop string (unless asked to include it, and then once, at its end); and exactly the
longest end of the text that begins a stop string is held back, no more. Of several matches the one
that is complete first counts, of those the longest.

Sans-IO: plain computation on `str.find` and `str.startswith`. A place that begins no stop string is
left for ever, so the worst text and the worst strings still cost a bounded time per character.
"""

import re

import attrs


@attrs.define(eq=False)
class StopStrings:
    """The search of one request; ends with the first match."""

    strings: tuple[str, ...]
    include_in_output: bool = False

    # The end of the text that was not given out; it begins a stop string and contains none.
    _held: str = attrs.field(default="", init=False)
    # Nearly every piece of text has none of these: then nothing else is looked at.
    _first_characters: re.Pattern[str] = attrs.field(init=False)
    _ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        assert self.strings
        assert all(self.strings)
        firsts = "".join(sorted({re.escape(string[0]) for string in self.strings}))
        self._first_characters = re.compile(f"[{firsts}]")

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that can be given out now, and the stop string that ended it, if one did."""
        assert not self._ended
        if not self._held and self._first_characters.search(text) is None:
            return text, None
        held, whole = len(self._held), self._held + text
        matches = []
        for string in self.strings:
            # A match ends in the new text.
            start = whole.find(string, max(held - len(string) + 1, 0))
            if start >= 0:
                matches.append((start + len(string), -len(string), string))
        if matches:
            end, _, string = min(matches)
            self._ended, self._held = True, ""
            return whole[: end if self.include_in_output else end - len(string)], string
        given = self._unfinished_from(whole)
        self._held = whole[given:]
        return whole[:given], None

    def finish(self) -> str:
        """Text that was held back, as no more text comes and it begins no stop string."""
        held, self._held = self._held, ""
        self._ended = True
        return held

    def check_invariants(self) -> None:
        """The text held back begins a stop string."""
        assert not self._held or not self._unfinished_from(self._held)

    def _unfinished_from(self, text: str) -> int:
        """Index of the longest end of this text that begins a stop string."""
        longest = max(map(len, self.strings)) - 1
        found = self._first_characters.search(text, max(len(text) - longest, 0))
        while found is not None:
            start = found.start()
            end = text[start:]
            if any(string.startswith(end) for string in self.strings):
                return start
            found = self._first_characters.search(text, start + 1)
        return len(text)
