"""Against the plainest search there is: any cut, any strings, same outcome and least hold-back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.text.stop_strings import StopStrings

# Two letters and strings that overlap themselves and one another: matches are frequent.
STRINGS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)
PIECES = st.lists(st.text("ab", max_size=5), max_size=12)


def plain_search(strings: tuple[str, ...], text: str) -> tuple[int, str] | None:
    """(end, string) of the match that is complete first, of those the longest."""
    for end in range(1, len(text) + 1):
        complete = [string for string in strings if text[:end].endswith(string)]
        if complete:
            return end, max(complete, key=len)
    return None


def least_held(strings: tuple[str, ...], text: str) -> int:
    return max(
        (n for string in strings for n in range(len(string)) if text.endswith(string[:n])),
        default=0,
    )


@given(STRINGS, PIECES, st.booleans())
def test_any_cut_gives_what_the_plain_search_gives(
    strings: tuple[str, ...], pieces: list[str], include: bool
) -> None:
    stops = StopStrings(strings, include_in_output=include)
    seen = given_out = ""
    matched = None
    for piece in pieces:
        seen += piece
        text, matched = stops.push(piece)
        stops.check_invariants()
        given_out += text
        if matched is not None:
            break
        assert given_out == seen[: len(seen) - least_held(strings, seen)]
    expected = plain_search(strings, seen)
    if expected is None:
        assert matched is None
        assert given_out + stops.finish() == seen
    else:
        end, string = expected
        assert matched == string
        assert given_out == seen[: end if include else end - len(string)]
    if not include:
        assert not any(string in given_out for string in strings)


def test_pieces_without_a_first_character_pass_as_they_are() -> None:
    stops = StopStrings(("]", "^end", "-"))
    assert stops.push("all of it") == ("all of it", None)
    assert stops.push("then ^e") == ("then ", None)
    assert stops.push("ol") == ("^eol", None)
    assert stops.push("x-y") == ("x", "-")


def test_the_worst_strings_are_held_back_whole() -> None:
    strings = tuple("a" * n + "b" for n in range(1008, 1024))
    stops = StopStrings(strings)
    for _ in range(20):
        assert stops.push("a" * 100)[1] is None
    assert len(stops.finish()) == 1023


def test_nothing_may_come_after_the_end() -> None:
    stops = StopStrings(("a",))
    stops.push("a")
    with pytest.raises(AssertionError):
        stops.push("b")
