"""Lines of the two tables: what was measured, and whether it is near enough."""

import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from torch.nn import functional

from triolet.engine.config import EngineSettings
from triolet.engine.model_config.config import load_model_config
from triolet.engine.worker.native.executor import native_fault
from triolet.tools.bundled_model.generator import draw_document

from .families import VOCABULARY, Family, reference_logits, save_model
from .scored import Array, Scorer

# Of the project's own generator; neither training nor evaluation uses it.
SEED = "held out: accuracy"
# Of float32 against float32, summed in another order.
EXACT_ERROR_MAX = 1e-4
PERPLEXITY_ERROR_MAX = 1e-3
CHUNK = 128
PLAIN, BITWISE, NATIVE = "torch bf16", "torch fp32 bitwise", "native bf16"
EXECUTORS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        PLAIN: {"executor": "torch", "bitwise": False},
        BITWISE: {"executor": "torch", "bitwise": True},
        NATIVE: {"executor": "native"},
    }
)


@attrs.frozen
class LogitsLine:
    """Relative to the root mean square of the reference: of the error, and the largest error."""

    family: str
    computed_by: str
    error: float
    largest: float
    error_max: float

    @property
    def good(self) -> bool:
        """Whether it is near enough."""
        return self.error < self.error_max

    def __str__(self) -> str:
        share = self.error / self.error_max
        verdict = "" if self.good else "  TOO FAR"
        errors = f"{self.error:10.6f}{self.largest:10.6f}"
        return f"{self.family:12}{self.computed_by:22}{errors}{share:9.0%}{verdict}"


@attrs.frozen
class PerplexityLine:
    """One perplexity beside transformers' in float32."""

    computed_by: str
    perplexity: float
    reference: float

    @property
    def good(self) -> bool:
        """Whether it is near enough."""
        return abs(self.perplexity / self.reference - 1) < PERPLEXITY_ERROR_MAX

    def __str__(self) -> str:
        off = f"{self.perplexity / self.reference - 1:+.4%}"
        verdict = "" if self.good else "  TOO FAR"
        return f"{self.computed_by:22}{self.perplexity:12.6f}{off:>12}{verdict}"


def logits_table(
    family: Family,
    base: pathlib.Path,
    sequences: Sequence[Sequence[int]],
    executors: Mapping[str, Mapping[str, Any]],
) -> Iterator[LogitsLine]:
    """transformers in bfloat16, which sets the bound, then each executor that serves it here."""
    folder = base / family.name.replace(" ", "-")
    save_model(folder, family)
    exact = reference_logits(folder, sequences, torch.float32)
    rounded = _errors(reference_logits(folder, sequences, torch.bfloat16), exact)
    yield LogitsLine(family.name, "transformers bf16", *rounded, error_max=np.inf)
    length = max(map(len, sequences))
    for name, settings in executors.items():
        if not serves(folder, settings):
            continue
        scorer = Scorer.of(folder, settings, length=length, chunk=CHUNK)
        found = [scorer.logits(tokens, VOCABULARY) for tokens in sequences]
        error_max = EXACT_ERROR_MAX if name == BITWISE else rounded[0]
        yield LogitsLine(family.name, name, *_errors(found, exact), error_max=error_max)


def perplexity_table(
    folder: pathlib.Path,
    windows: Sequence[Sequence[int]],
    executors: Mapping[str, Mapping[str, Any]],
) -> Iterator[PerplexityLine]:
    """transformers in float32, then each executor."""
    reference = reference_perplexity(folder, windows)
    yield PerplexityLine("transformers fp32", reference, reference)
    for name, settings in executors.items():
        if not serves(folder, settings):
            continue
        scorer = Scorer.of(folder, settings, length=max(map(len, windows)), chunk=CHUNK)
        yield PerplexityLine(name, perplexity(scorer, windows), reference)


def serves(folder: pathlib.Path, executor: Mapping[str, Any]) -> bool:
    """Whether an executor is there, and has the family; torch always."""
    settings = EngineSettings(model=str(folder), **executor)
    return settings.executor != "native" or not native_fault(settings, load_model_config(folder))


def _errors(found: Sequence[Array], exact: Sequence[Array]) -> tuple[float, float]:
    difference = np.concatenate(found) - np.concatenate(exact)
    size = np.sqrt(np.mean(np.concatenate(exact) ** 2))
    return float(np.sqrt(np.mean(difference**2)) / size), float(np.abs(difference).max() / size)


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
