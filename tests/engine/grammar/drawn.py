"""Random answers that a schema's grammar allows, byte by byte, without a model."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from triolet.engine.grammar.text import LIMITS, check_grammar, grammar_text
from triolet.engine.structured_outputs import StructuredOutputs

# Of an answer; a longer one is only the beginning of one.
BYTES_MAX = 400
END_CHANCE = 0.2
STEP_CHANCE = 0.3
_BYTES = LLTokenizer("byte")


def drawn(schema: Any, seeds: Iterable[int]) -> list[str | None]:
    """An answer for each seed, None where it went on for too long. Raises `InvalidParameter`."""
    return drawn_of(StructuredOutputs.json(schema), seeds)


def drawn_of(
    wanted: StructuredOutputs, seeds: Iterable[int], steps: Sequence[str] = ()
) -> list[str | None]:
    """The same of any form; `steps` are texts that are taken whole now and then, where they fit."""
    check_grammar(wanted)
    matcher = LLMatcher(_BYTES, grammar_text(wanted), log_level=0, limits=LIMITS)
    return [_drawn(matcher.deep_copy(), random.Random(seed), steps) for seed in seeds]


def _drawn(matcher: LLMatcher, chance: random.Random, steps: Sequence[str]) -> str | None:
    text = bytearray()
    while len(text) < BYTES_MAX:
        if steps and chance.random() < STEP_CHANCE:
            step = chance.choice(steps).encode()
            if matcher.validate_tokens(list(step)) == len(step):
                matcher.consume_tokens(list(step))
                text += step
                if matcher.is_stopped():
                    return text.decode()
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
