"""Random answers that a schema's grammar allows, byte by byte, without a model."""

import random
from collections.abc import Iterable
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from triolet.engine.grammar.text import LIMITS, check_grammar, grammar_text
from triolet.engine.structured_outputs import StructuredOutputs

# Of an answer; a longer one is only the beginning of one.
BYTES_MAX = 400
END_CHANCE = 0.2
_BYTES = LLTokenizer("byte")


def drawn(schema: Any, seeds: Iterable[int]) -> list[str | None]:
    """An answer for each seed, None where it went on for too long. Raises `InvalidParameter`."""
    wanted = StructuredOutputs.json(schema)
    check_grammar(wanted)
    matcher = LLMatcher(_BYTES, grammar_text(wanted), log_level=0, limits=LIMITS)
    return [_drawn(matcher.deep_copy(), random.Random(seed)) for seed in seeds]


def _drawn(matcher: LLMatcher, chance: random.Random) -> str | None:
    text = bytearray()
    while len(text) < BYTES_MAX:
        mask = matcher.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte // 8] >> (byte % 8) & 1]
        if matcher.is_accepting() and (not allowed or chance.random() < END_CHANCE):
            return text.decode()
        assert allowed, f"{bytes(text)!r} cannot go on: {matcher.get_error()}"
        byte = chance.choice(allowed)
        matcher.consume_token(byte)
        text.append(byte)
        if matcher.is_stopped():
            return text.decode()
    return None
