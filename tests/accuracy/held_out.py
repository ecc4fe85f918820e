"""Text that the bundled model has not seen, and how much of a surprise it is to whom.

It comes from the project's own generator with a seed that neither training nor evaluation uses.
"""

import math
import pathlib
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from torch.nn import functional

from triolet.tools.bundled_model.generator import draw_document

from .scored import Scorer

SEED = "held out: accuracy"


def held_out_windows(folder: pathlib.Path, count: int, length: int) -> list[list[int]]:
    """So many windows of `length` tokens, each the beginning of a text of several documents."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    random = Random(SEED)
    windows = []
    for _ in range(count):
        window: list[int] = []
        while len(window) < length:
            text = draw_document(random)
            window += tokenizer.encode(text, add_special_tokens=False).ids
        windows.append(window[:length])
    return windows


def perplexity(scorer: Scorer, windows: Sequence[Sequence[int]]) -> float:
    """Of all tokens but the first of each window, by an executor."""
    nats = sum(scorer.nats(window) for window in windows)
    return math.exp(nats / sum(len(window) - 1 for window in windows))


def reference_perplexity(folder: pathlib.Path, windows: Sequence[Sequence[int]]) -> float:
    """The same by transformers in float32."""
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=torch.float32)
    model.eval()
    nats = 0.0
    with torch.inference_mode():
        for window in windows:
            tokens = torch.tensor(window)
            logits = model(tokens[None]).logits[0, :-1].double()
            nats += float(functional.cross_entropy(logits, tokens[1:], reduction="sum"))
    return math.exp(nats / sum(len(window) - 1 for window in windows))
