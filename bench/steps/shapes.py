"""Model folders of the shapes that figures are given for: random weights, a tokenizer that works.

Figures depend on sizes, not on what a model has learnt. A folder is written once, from a fixed
seed, and kept in the user's cache. Its tokens are ASCII text each, so that every token that comes
out is a complete piece of text, and the words of the load generator are one token each.
"""

import itertools
import json
import math
import os
import pathlib
import secrets
import shutil
import string
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, BinaryIO

import attrs
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ..load.schedule import WORDS

# Counts changes of what is written; part of the folder's name, so that none is used unawares.
REVISION = 2
SEED = 1
# Deviation of random weights, as trained models begin with.
DEVIATION = 0.02
END_TOKEN = "<|end|>"
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
# Space in front of a word in tokenizer.json.
_SPACE = "\u0120"
_LETTERS = string.ascii_lowercase
_POSITIONS = 4096


@attrs.frozen(kw_only=True)
class Shape:
    """The sizes of one model. `intermediate_size` is of the MLP; all counts of values."""

    name: str
    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    tied: bool

    def config(self) -> dict[str, Any]:
        """The contents of config.json."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": _POSITIONS,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10_000.0,
            "hidden_act": "silu",
            "attention_bias": False,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            "bos_token_id": None,
            "eos_token_id": self.vocab_size - 1,
        }

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """{name: shape} of every weight, in the order of the file."""
        hidden, queries, keys = self.hidden_size, self.heads * self.head_dim, self.kv_heads
        keys *= self.head_dim
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, hidden)}
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            found |= {
                f"{prefix}input_layernorm.weight": (hidden,),
                f"{prefix}self_attn.q_proj.weight": (queries, hidden),
                f"{prefix}self_attn.k_proj.weight": (keys, hidden),
                f"{prefix}self_attn.v_proj.weight": (keys, hidden),
                f"{prefix}self_attn.o_proj.weight": (hidden, queries),
                f"{prefix}post_attention_layernorm.weight": (hidden,),
                f"{prefix}mlp.gate_proj.weight": (self.intermediate_size, hidden),
                f"{prefix}mlp.up_proj.weight": (self.intermediate_size, hidden),
                f"{prefix}mlp.down_proj.weight": (hidden, self.intermediate_size),
            }
            if self.model_type == "qwen3":
                found[f"{prefix}self_attn.q_norm.weight"] = (self.head_dim,)
                found[f"{prefix}self_attn.k_norm.weight"] = (self.head_dim,)
        found["model.norm.weight"] = (hidden,)
        if not self.tied:
            found["lm_head.weight"] = (self.vocab_size, hidden)
        return found


TINY = Shape(
    name="tiny",
    architecture="LlamaForCausalLM",
    model_type="llama",
    vocab_size=8192,
    hidden_size=256,
    intermediate_size=768,
    layers=4,
    heads=4,
    kv_heads=2,
    head_dim=64,
    tied=False,
)
SMALL = Shape(
    name="small",
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    vocab_size=32_000,
    hidden_size=1024,
    intermediate_size=3072,
    layers=8,
    heads=16,
    kv_heads=8,
    head_dim=128,
    tied=True,
)
SHAPES = MappingProxyType({shape.name: shape for shape in (TINY, SMALL)})


def model_or_shape(model: str | None) -> str | None:
    """A folder as it is; the word of a shape becomes its folder, which is written if need be."""
    return str(shape_folder(SHAPES[model])) if model and model in SHAPES else model


def cache_folder() -> pathlib.Path:
    """Folder of this user's shapes."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "triolet" / "shapes"


def shape_folder(shape: Shape, cache: pathlib.Path | None = None) -> pathlib.Path:
    """The folder of a shape, written whole or not at all if it is not there yet."""
    cache = cache or cache_folder()
    folder = cache / f"{shape.name}-{REVISION}"
    if not folder.exists():
        half = cache / f".{folder.name}-{secrets.token_hex(4)}"
        half.mkdir(parents=True)
        try:
            write_shape(shape, half)
            half.rename(folder)
        except OSError:
            if not folder.exists():  # else another process was quicker
                raise
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return folder


def write_shape(shape: Shape, folder: pathlib.Path) -> None:
    """Write all files of the model into an existing folder."""
    vocabulary, merges = make_vocabulary(shape.vocab_size)
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=2))
    (folder / "tokenizer.json").write_text(_tokenizer(vocabulary, merges))
    settings = {"eos_token": END_TOKEN, "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    silent = np.array([not _is_text(token) for token in vocabulary])
    with (folder / "model.safetensors").open("wb") as file:
        _write_weights(shape, silent, file)


# ---- weights


def _write_weights(shape: Shape, silent_V: NDArray[np.bool_], file: BinaryIO) -> None:  # noqa: N803
    """The safetensors format. Rows of the output for `silent_V` are zero: they never win."""
    header: dict[str, Any] = {}
    offset = 0
    for name, sizes in shape.tensors().items():
        end = offset + 2 * math.prod(sizes)
        header[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)  # so that values are aligned
    file.write(len(text).to_bytes(8, "little") + text)
    chance = np.random.Generator(np.random.PCG64(SEED))
    output = "model.embed_tokens.weight" if shape.tied else "lm_head.weight"
    for name, sizes in shape.tensors().items():
        values = chance.standard_normal(sizes, dtype=np.float32) * np.float32(DEVIATION)
        if len(sizes) == 1:
            values[:] = 1.0
        if name == output:
            values[silent_V] = 0.0
        file.write(bfloat16_bits(values).tobytes())


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of float32, rounded to nearest, of equals to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


# ---- tokenizer


def make_vocabulary(size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens by id, and the merges that make them: bytes, our words, then combinations of letters.

    Words come first among the merges, letter by letter from the space before them, so that no
    other merge can break one. The last token ends a text.
    """
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    known = set(tokens)
    merges = []
    for left, right in itertools.chain(_word_merges(), _letter_merges()):
        if len(tokens) == size - 1:
            break
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append((left, right))
    assert len(tokens) == size - 1, "there are as many tokens as the vocabulary has places"
    return [*tokens, END_TOKEN], merges


def _word_merges() -> Iterator[tuple[str, str]]:
    for word in WORDS:
        made = _SPACE
        for letter in word:
            yield made, letter
            made += letter


def _letter_merges() -> Iterator[tuple[str, str]]:
    for begin in ("", _SPACE):
        if begin:
            yield from ((begin, a) for a in _LETTERS)
        yield from ((begin + a, b) for a in _LETTERS for b in _LETTERS)
    for begin in ("", _SPACE):
        for a, b, c in itertools.product(_LETTERS, repeat=3):
            yield begin + a + b, c


def _is_text(token: str) -> bool:
    """Whether a token is plain text: printable ASCII, spaces among it."""
    plain = token.replace(_SPACE, " ")
    return plain.isascii() and plain.isprintable() and token != END_TOKEN


def _tokenizer(vocabulary: list[str], merges: list[tuple[str, str]]) -> str:
    """The contents of tokenizer.json."""
    vocab = {token: index for index, token in enumerate(vocabulary[:-1])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_TOKEN])
    return tokenizer.to_str()
