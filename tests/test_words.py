"""Phrases that read oddly in English, and what to write instead, looked for in all that users read;
and docstrings and comments of the product whose first sentence has no subject.

Each row is a phrase as a regular expression, and better words for it. What is right
in one place all the same is allowed there by name.
"""

import io
import pathlib
import re
from collections.abc import Iterator
from contextlib import redirect_stdout

import pytest

from triolet.command_line import app

from .figures import docstrings, openings
from .house import ROOT, house_modules
from .test_totals import PARTS

GLOSSARY = {
    r"\btell(s|ing)?\b(?! me)|\btold\b": "report, return, state",
    r"\bso (many|much|long)\b": "a number, a duration; at most N, for N seconds",
    r"\b(leaves?|left|leaving) [^.|]{0,30}\bopen\b": "omit",
    r"\b(is|are) none\b(?! [a-z]+ed)": "is not one, does not exist",
    r"\bthe begin\b": "the beginning",
    r"\bstands? (in|there|at|for)\b": "is in, is listed in",
    r"\banew\b": "again, from the beginning, restart",
    r"\b(serve|serves|serving|served) out\b": "finish requests in flight, drain",
    r"\b(nobody|somebody|anybody|everybody|whoever|whom)\b": "name the process, client or task",
    r"\bonce more\b": "again",
    r"\bof use\b": "useful",
    r"\bmay be given often\b": "repeatable",
    r"\bgoes before\b": "takes precedence over",
    r"\bPulled out of the air\b": "say what the number rests on",
}
# {place: phrases that are right there}
ALLOWED: dict[str, set[str]] = {"tests/README.md": {"anew"}}  # a profile's name
# Percent of the product's sentences that may open with a pronoun or a preposition; to be lowered.
OPENINGS_MAX = {"docstrings": 1, "comments": 1}
# Docstrings of one pointer, "See `X`.", where the Protocol or the signature has said it.
POINTERS_MAX = 0
PRODUCT = [module for module in house_modules() if module.room in PARTS["product"]]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")],
    key=lambda path: path.relative_to(ROOT).parts,
)
COMMANDS = [(), ("serve",), ("run",), ("tree",), ("restart",), ("doctor",), ("config", "show")]
COMMANDS += [("chaos",), ("bench",), ("batch",), ("top",)]


def odd_phrases(place: str, text: str) -> Iterator[str]:
    """Each with its line and what to write."""
    for number, line in enumerate(text.splitlines(), 1):
        for phrase, better in GLOSSARY.items():
            for found in re.finditer(phrase, line, re.IGNORECASE):
                if found[0] not in ALLOWED.get(place, set()):
                    yield f"{place}:{number}: {found[0]!r}: {better}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_have_no_odd_phrases(page: pathlib.Path) -> None:
    place = str(page.relative_to(ROOT))
    assert list(odd_phrases(place, page.read_text())) == []


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words) or "triolet")
def test_help_has_no_odd_phrases(words: tuple[str, ...]) -> None:
    said = io.StringIO()
    with redirect_stdout(said):
        app([*words, "--help"], result_action="return_value")
    text = re.sub(r"\s*│\s*\n?\s*│?\s*", " ", said.getvalue())
    assert list(odd_phrases("--help", text)) == []


def test_an_odd_phrase_is_found() -> None:
    assert len(list(odd_phrases("x", "It tells so many\nfine\nis none"))) == 3


@pytest.mark.parametrize("kind", OPENINGS_MAX)
def test_sentences_begin_with_their_subject(kind: str) -> None:
    """A tooltip shows a docstring alone, without the line above that has its noun."""
    found = openings(PRODUCT, kind)
    assert int(found.value.partition(" ")[0]) <= OPENINGS_MAX[kind], "\n".join(found.places)


def test_docstrings_say_more_than_where_to_look() -> None:
    pointers = [
        f"{module.name}:{line}"
        for module in PRODUCT
        for line, text in docstrings(module)
        if re.fullmatch(r"See `[\w.]+`\.?", text.strip())
    ]
    assert len(pointers) <= POINTERS_MAX, pointers
