"""The corpus: well-formed documents, and nothing held out ever among them."""

from __future__ import annotations

import re
from random import Random

from triolet.tools.bundled_model import generator
from triolet.tools.bundled_model.words import CAPITALS

DOCUMENTS = 1500


def draw_documents() -> list[str]:
    random = Random(7)
    return [generator.draw_document(random) for _ in range(DOCUMENTS)]


def test_no_held_out_pair_is_asked_for_in_training() -> None:
    asked = r"about an? (\w+)(?: named \w+)? and an? (\w+)"
    described = r"JSON[^<]*? (\w+) the (\w+)"
    pairs: set[tuple[str, str]] = set()
    for document in draw_documents():
        pairs.update(re.findall(asked, document))
        pairs.update(re.findall(described, document))
    assert len(pairs) > 300
    assert not [pair for pair in pairs if generator.is_held_out(*pair)]


def test_no_held_out_capital_question_is_in_training() -> None:
    held_out = {
        generator.USER + phrasing.format(country=country) + generator.ASSISTANT
        for country in CAPITALS
        for phrasing in generator.CAPITAL_PHRASINGS
        if generator.is_held_out(country, phrasing)
    }
    corpus = "".join(draw_documents())
    assert not [question for question in held_out if question in corpus]
