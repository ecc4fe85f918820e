"""Compiled grammars over the bundled model's vocabulary, for tests."""

import json
from collections.abc import Iterator

from tokenizers import Tokenizer

from triolet.engine.core.grammar import mask_bytes
from triolet.engine.grammar.matcher import MatchedGrammar
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.process.grammar_compiler import GrammarCompiler
from triolet.engine.structured_outputs import StructuredOutputs

FOLDER = bundled_model_folder()
CONFIG = json.loads((FOLDER / "config.json").read_text())
VOCAB_SIZE: int = CONFIG["vocab_size"]
EOS: int = CONFIG["eos_token_id"]
_tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def encode(text: str) -> list[int]:
    ids: list[int] = _tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def make_compiler() -> GrammarCompiler:
    compiler = GrammarCompiler(FOLDER, VOCAB_SIZE)
    compiler.load()
    return compiler


def make_order(
    wanted: StructuredOutputs, *, eos: tuple[int, ...] = (EOS,), output: tuple[int, ...] = ()
) -> tuple[StructuredOutputs, frozenset[int], tuple[int, ...]]:
    """What a request of this form gives a compiler."""
    return wanted, frozenset(eos), output


def allowed(grammar: MatchedGrammar) -> set[int]:
    words = bytearray(mask_bytes(VOCAB_SIZE))
    grammar.fill_mask(memoryview(words))
    return {i for i in range(VOCAB_SIZE) if words[i // 8] >> (i % 8) & 1}


def accepted(grammar: MatchedGrammar, text: str) -> Iterator[int]:
    """Accept the text token by token; yields each token before it is accepted."""
    for token_id in encode(text):
        yield token_id
        assert grammar.accept(token_id), (text, token_id)
