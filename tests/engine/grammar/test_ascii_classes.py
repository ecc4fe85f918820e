"""Which characters a pattern's classes mean, beside Python's own reading of them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.grammar.ascii_classes import with_ascii_classes


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        (r"\d{3}", "[0-9]{3}"),
        (r"[\d.]+", "[0-9.]+"),
        (r"[^\w]\w", "[^A-Za-z0-9_][A-Za-z0-9_]"),
        (r"\\d\\\d", r"\\d\\[0-9]"),
        (r"[\]\d]\D\W", r"[\]0-9]\D\W"),
        (r"[]\d][^]\w]", "[]0-9][^]A-Za-z0-9_]"),
        ("broken\\", "broken\\"),
    ],
)
def test_classes_are_written_out(pattern: str, meant: str) -> None:
    assert with_ascii_classes(pattern) == meant


PARTS = st.sampled_from([r"\d", r"\w", r"\\", r"\.", "[a\\d]", r"[^\w\]]", "a", "(b|c)", "x*"])


@given(st.lists(PARTS, max_size=6), st.text("ab1_.x\\]", max_size=6))
def test_ascii_text_is_matched_as_before(parts: list[str], text: str) -> None:
    pattern = "".join(parts)
    matched = re.fullmatch(pattern, text) is not None
    assert (re.fullmatch(with_ascii_classes(pattern), text) is not None) == matched
