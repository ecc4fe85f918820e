"""Cost of the masks of 64 rows under grammars in a step.

    python -m triolet.bench masks

Each row is somewhere else in a JSON object. *filled* is CPU time of this thread, in which the
engine's loop does nothing else; *accepted* is what the tokens before cost, one a row.
"""

import pathlib
import statistics
import time

from llguidance import LLMatcher, LLTokenizer

from ...engine.core.grammar import fill_masks
from ...engine.grammar.matcher import MatchedGrammar
from ...engine.grammar.text import LIMITS, grammar_text
from ...engine.model.bundled import bundled_model_folder
from ...engine.structured_outputs import StructuredOutputs
from ..steps.shapes import SHAPES, shape_folder
from .words import argument_parser

ROWS, STEPS = 64, 60
FORM = StructuredOutputs.json(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "age", "tags"],
    }
)
TEXT = '{"name":"a fox of the wood","age":27,"tags":["red","quick","old, and not at all tired"]}'


def measure(folder: pathlib.Path) -> tuple[int, list[float], list[float]]:
    """Vocabulary, and milliseconds of each step: masks filled, tokens accepted."""
    text = (folder / "tokenizer.json").read_text()
    tokenizer = LLTokenizer(text)
    vocab_size = tokenizer.vocab_size
    compiled = LLMatcher(tokenizer, grammar_text(FORM), log_level=0, limits=LIMITS)
    tokens = tokenizer.tokenize_str(TEXT)
    grammars = [MatchedGrammar(compiled.deep_copy()) for _ in range(ROWS)]
    places = [row * len(tokens) // ROWS for row in range(ROWS)]
    for grammar, place in zip(grammars, places, strict=True):
        assert all(grammar.accept(token) for token in tokens[:place])
    filled, accepted = [], []
    for _ in range(STEPS):
        begin_s = time.thread_time()
        fill_masks(grammars, vocab_size)
        filled_s = time.thread_time()
        for row, place in enumerate(places):
            if place == len(tokens):
                grammars[row], places[row] = MatchedGrammar(compiled.deep_copy()), 0
        again_s = time.thread_time()
        for row, place in enumerate(places):
            grammars[row].accept(tokens[place])
        accepted.append(1e3 * (time.thread_time() - again_s))
        places = [place + 1 for place in places]
        filled.append(1e3 * (filled_s - begin_s))
    return vocab_size, filled, accepted


def main() -> None:
    """Print a line for each vocabulary."""
    argument_parser(__doc__).parse_args()
    for folder in (pathlib.Path(bundled_model_folder()), shape_folder(SHAPES["small"])):
        vocab_size, filled, accepted = measure(folder)
        print(
            f"{ROWS} rows, vocabulary {vocab_size:6}: filled {statistics.median(filled):6.2f} ms"
            f" (most {max(filled):6.2f}), accepted {statistics.median(accepted):5.2f} ms"
        )


if __name__ == "__main__":
    main()
