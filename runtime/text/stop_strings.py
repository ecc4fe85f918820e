"""Finds stop strings in a text that comes in pieces, and holds back only what may belong to one.

The promise: however the text is cut into pushes, the outcome is the same; the text given out never
contains a stop string (unless asked to include it, and then once, at its end); and exactly the
longest end of the text that begins a stop string is held back, no more. Of several matches the one
that is complete first counts, of those the longest.

Sans-IO: plain computation, one Knuth-Morris-Pratt automaton for each string, so that the worst
text and the worst strings cost a constant per character and string. Must not know tokens.
"""

import re

import attrs


@attrs.define(eq=False)
class StopStrings:
    """The search of one request; ends with the first match."""

    strings: tuple[str, ...]
    include_in_output: bool = False

    # _failures[s][n]: how much of string s still matches when its first n characters matched and
    # the next did not.
    _failures: list[list[int]] = attrs.field(init=False)
    # _matched[s]: how many characters of string s the text ends with (the longest such number).
    _matched: list[int] = attrs.field(init=False)
    # The end of the text that was not given out: max(_matched) characters.
    _held: str = attrs.field(default="", init=False)
    # Nearly every piece of text has none of these: then nothing else is looked at.
    _first_characters: re.Pattern[str] = attrs.field(init=False)
    _ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        assert self.strings
        assert all(self.strings)
        self._failures = [_failure_table(string) for string in self.strings]
        self._matched = [0] * len(self.strings)
        firsts = "".join(sorted({re.escape(string[0]) for string in self.strings}))
        self._first_characters = re.compile(f"[{firsts}]")

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that can be given out now, and the stop string that ended it, if one did."""
        assert not self._ended
        start = 0
        if not self._held:
            found = self._first_characters.search(text)
            if found is None:
                return text, None
            start = found.start()
        whole = self._held + text
        for position in range(start, len(text)):
            string = self._advance(text[position])
            if string is not None:
                return self._end(whole, len(self._held) + position + 1, string)
        given = len(whole) - max(self._matched)
        self._held = whole[given:]
        return whole[:given], None

    def finish(self) -> str:
        """What was held back, now that no more text comes and it begins no stop string."""
        held, self._held = self._held, ""
        self._ended = True
        return held

    def check_invariants(self) -> None:
        """The text held back is what the longest unfinished match needs."""
        assert self._ended or len(self._held) == max(self._matched)
        for string, matched in zip(self.strings, self._matched, strict=True):
            assert self._ended or self._held.endswith(string[:matched])

    def _advance(self, character: str) -> str | None:
        """Take one character into all automata; the longest string that is now complete."""
        complete: str | None = None
        for place, string in enumerate(self.strings):
            failures, matched = self._failures[place], self._matched[place]
            while matched and string[matched] != character:
                matched = failures[matched]
            if string[matched] == character:
                matched += 1
            self._matched[place] = matched
            if matched == len(string) and (complete is None or matched > len(complete)):
                complete = string
        return complete

    def _end(self, whole: str, end: int, string: str) -> tuple[str, str]:
        self._ended, self._held = True, ""
        return whole[: end if self.include_in_output else end - len(string)], string


def _failure_table(string: str) -> list[int]:
    """failures[n] is the length of the longest proper beginning of string[:n] that also ends it."""
    failures = [0] * (len(string) + 1)
    matched = 0
    for place in range(1, len(string)):
        while matched and string[matched] != string[place]:
            matched = failures[matched]
        if string[matched] == string[place]:
            matched += 1
        failures[place + 1] = matched
    return failures
