"""Structured outputs of one request, as they cross the wire: a kind of grammar, and its text.

Bounds on the text are checked at construction, before anything parses it. Whether it can be served
is checked by `grammar.text.check_grammar`, on both sides of the wire.
"""

import enum
import json
from collections.abc import Iterable, Mapping
from typing import Any, Self

import attrs

from .errors import InvalidParameter

# A schema of 200 properties has about 20 kB. Compiling takes time and memory in proportion.
GRAMMAR_CHARACTERS_MAX = 1 << 16
# vLLM has no bound; each choice is a branch at the first token.
CHOICES_MAX = 1024


class GrammarKind(enum.StrEnum):
    """The language of the text."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"  # any JSON object; the text is empty
    REGEX = "regex"  # of the whole output
    CHOICE = "choice"  # a JSON array of strings, one of which is the whole output
    GRAMMAR = "grammar"  # Lark as llguidance reads it, or GBNF


@attrs.frozen
class StructuredOutputs:
    """The output must match `text`. Made by the class methods; one that exists is within bounds.

    Raises `InvalidParameter` of the field `structured_outputs`.
    """

    kind: GrammarKind
    text: str = ""

    def __attrs_post_init__(self) -> None:
        if len(self.text) > GRAMMAR_CHARACTERS_MAX:
            reason = f"must have at most {GRAMMAR_CHARACTERS_MAX} characters, not {len(self.text)}"
            raise InvalidParameter("structured_outputs", reason)
        try:
            self.text.encode()
        except UnicodeEncodeError as error:  # half a pair of surrogates: no message has that
            reason = f"must be text: its character {error.start} is none"
            raise InvalidParameter("structured_outputs", reason) from None

    @classmethod
    def json(cls, schema: str | bool | Mapping[str, Any]) -> Self:
        """JSON that a schema describes, given as text or as what `json.loads` makes of it."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return cls(GrammarKind.JSON_SCHEMA, text)

    @classmethod
    def json_object(cls) -> Self:
        """Any JSON object."""
        return cls(GrammarKind.JSON_OBJECT)

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Text that the pattern matches as a whole; without look-around and back references."""
        return cls(GrammarKind.REGEX, pattern)

    @classmethod
    def choice(cls, choices: Iterable[str]) -> Self:
        """Make a choice among these texts."""
        texts = list(choices)
        if not 0 < len(texts) <= CHOICES_MAX:
            raise InvalidParameter("structured_outputs", f"must have 1 to {CHOICES_MAX} choices")
        return cls(GrammarKind.CHOICE, json.dumps(texts))

    @classmethod
    def grammar(cls, text: str) -> Self:
        """Text that a Lark or GBNF grammar derives."""
        return cls(GrammarKind.GRAMMAR, text)
