"""Tables of accuracy: logits of a random model of each family, perplexity of the bundled model.

What was measured, beside transformers in float32, and whether it is near enough. Random models are
in bfloat16 as real checkpoints are, small enough for seconds and wide enough that sums of products
round as in real models. The text of the perplexity comes from the project's own generator with a
seed that neither training nor evaluation uses.
"""

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

from .scored import Array, Scorer, centred

# Its bar has a thread of its own, which would outlive its caller.
_transformers_logging: Any = transformers.utils.logging
_transformers_logging.disable_progress_bar()

VOCABULARY = 512
POSITIONS = 512
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# What a token says to routers, of two experts; all else that they see is about 1.
FIRST_CHOICE, SECOND_CHOICE = 12.0, 6.0
# Of matrices, in units of 1 / sqrt(inputs): logits spread by a few nats, as trained models' do.
SPREAD = 1.0


@attrs.frozen
class Family:
    """How `transformers` makes its model; `changes` are of `SIZES`."""

    name: str
    model_class: Any
    changes: dict[str, Any]


WINDOW = {"sliding_window": 70}
FAMILIES = (
    Family("llama", transformers.LlamaForCausalLM, {}),
    Family("mistral", transformers.MistralForCausalLM, WINDOW),
    Family("qwen2", transformers.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    Family("qwen3", transformers.Qwen3ForCausalLM, {"tie_word_embeddings": True}),
    Family(
        "qwen3 moe",
        transformers.Qwen3MoeForCausalLM,
        {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 256,
            "norm_topk_prob": True,
        },
    ),
    Family("gemma3", transformers.Gemma3ForCausalLM, {**WINDOW, "query_pre_attn_scalar": 64}),
)


def save_model(folder: pathlib.Path, family: Family, *, seed: int = 3, **sizes: Any) -> None:
    """A random model of the family, saved in bfloat16."""
    torch.manual_seed(seed)
    model_class = family.model_class
    settings = {**SIZES, **family.changes, **sizes}
    if model_class is transformers.Qwen2ForCausalLM:
        del settings["head_dim"]  # which follows from the others there
    model = model_class(model_class.config_class(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=SPREAD / parameter.shape[-1] ** 0.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
            elif family.name != "gemma3":  # whose norms are stored less 1
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.uniform_(-0.5, 0.5)
        if "num_experts" in settings:
            _make_choices_clear(model, settings["num_experts"])
    model.to(torch.bfloat16).save_pretrained(folder)


def _make_choices_clear(model: Any, experts: int) -> None:
    """Each token has two experts, whatever layers add to it.

    Between random routers' choices there are near ties: a rounding that tips one over weighs more
    than all others together, and whose do is chance.
    """
    tokens = torch.arange(VOCABULARY)
    second = (tokens + 1 + tokens // experts % (experts - 1)) % experts
    embeddings = model.model.embed_tokens.weight
    embeddings[:, :experts] = 0
    embeddings[tokens, tokens % experts] = FIRST_CHOICE
    embeddings[tokens, second] = SECOND_CHOICE
    for layer in model.model.layers:
        layer.mlp.gate.weight.copy_(torch.eye(experts, embeddings.shape[1]))


def reference_logits(
    folder: pathlib.Path, tokens: Sequence[Sequence[int]], dtype: torch.dtype
) -> list[Array]:
    """Logits of transformers for all tokens but the last of each sequence, rows centred."""
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder, dtype=dtype)
    model.eval()
    found = []
    with torch.inference_mode():
        for sequence in tokens:
            logits = model(torch.tensor([list(sequence)])).logits[0, :-1].float()
            found.append(centred(logits.double().numpy()))
    return found


def random_sequences(count: int, length: int) -> list[list[int]]:
    """Token ids from a seed, the same everywhere."""
    chance = np.random.default_rng(11)
    return [chance.integers(3, VOCABULARY, length).tolist() for _ in range(count)]


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
