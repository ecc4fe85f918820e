"""Memory layout of a model's weights: where each part lies, and which value goes where in it.

Sans-IO: arithmetic on a model's config. The same config gives the same places, so that memory that
one process has filled can be mapped by another. Padding and order are those of `model.h`.
"""

from collections.abc import Iterator

import attrs
import numpy
from numpy.typing import NDArray

from ..config import BLOCK_TOKENS
from ..model_config.config import GEMMAS, LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, ModelConfig

Indices = NDArray[numpy.int32]
PANEL = 64
GATE_GROUP = 16
HALF_HEAD = 16  # each half of a head is padded to a multiple
EXPERTS_MULTIPLE = 16  # a vector of scores
HEAD_PADDED_MAX = 512  # `attention.h`
FLOAT_BYTES = 4
BF16_BYTES = 2
# A page: parts begin at a cache line of their own, and none shares one with its neighbour.
PART_ALIGNMENT = 4096
ARCHITECTURES = (LLAMA, MISTRAL, QWEN2, QWEN3, QWEN3_MOE, *GEMMAS)
NO_PLACE = -1


def layout_fault(config: ModelConfig) -> str:
    """Why the kernels do not compute this model, or an empty string."""
    if config.architecture not in ARCHITECTURES:
        return f"{config.architecture} is none of {', '.join(ARCHITECTURES)}"
    if Sizes.of(config).head > HEAD_PADDED_MAX:
        return f"heads of {config.head_size} channels are wider than {HEAD_PADDED_MAX}"
    return ""


def padded(size: int, multiple: int) -> int:
    """The least multiple that holds `size`."""
    return -(-size // multiple) * multiple


@attrs.frozen
class Sizes:
    """Padded sizes, in values."""

    hidden: int
    head: int
    heads: int  # columns of all query heads
    query_key_value: int
    intermediate: int
    vocab: int
    # Experts of a mixture, and the width of each; 0 without one.
    experts: int
    expert_intermediate: int

    @classmethod
    def of(cls, config: ModelConfig) -> "Sizes":
        """Sizes of a model's parts."""
        head = 2 * padded(config.head_size // 2, HALF_HEAD)
        unit = head if head % PANEL == 0 else 2 * head
        count, width = 0, 0
        if config.experts is not None:
            count, width = config.experts.count, config.experts.intermediate_size
        return cls(
            hidden=padded(config.hidden_size, PANEL),
            head=head,
            heads=config.heads * head,
            query_key_value=padded((config.heads + 2 * config.kv_heads) * head, unit),
            intermediate=padded(config.intermediate_size, PANEL // 2),
            vocab=padded(config.vocab_size, PANEL),
            experts=padded(count, EXPERTS_MULTIPLE),
            expert_intermediate=padded(width, PANEL // 2),
        )


@attrs.frozen
class Part:
    """A piece of memory: `count` values of `item_bytes` from `begin` on."""

    begin: int
    count: int
    item_bytes: int

    @property
    def end(self) -> int:
        """Offset of the part's end, in bytes."""
        return self.begin + self.count * self.item_bytes


@attrs.frozen
class Layout:
    """Parts by name; a layer's are `<index>.<name>`."""

    parts: dict[str, Part]
    size: int

    @classmethod
    def of(cls, config: ModelConfig) -> "Layout":
        """The layout of a model whose `layout_fault` is empty."""
        parts: dict[str, Part] = {}
        end = 0
        for name, count, item_bytes in _parts(config):
            begin = padded(end, PART_ALIGNMENT)
            parts[name] = part = Part(begin, count, item_bytes)
            end = part.end
        return cls(parts, padded(end, PART_ALIGNMENT))


def _parts(config: ModelConfig) -> Iterator[tuple[str, int, int]]:
    sizes = Sizes.of(config)
    for index in range(config.layers):
        parts = (*_attention_parts(config, sizes), *_mlp_parts(config, sizes, index))
        for name, count, item_bytes in parts:
            yield f"{index}.{name}", count, item_bytes
    yield "norm", sizes.hidden, FLOAT_BYTES
    yield "head", sizes.vocab * sizes.hidden, BF16_BYTES
    if not config.tied_embeddings:
        yield "embedding", config.vocab_size * sizes.hidden, BF16_BYTES


def _attention_parts(config: ModelConfig, sizes: Sizes) -> Iterator[tuple[str, int, int]]:
    hidden = sizes.hidden
    yield "attention_norm", hidden, FLOAT_BYTES
    yield "query_key_value", sizes.query_key_value * hidden, BF16_BYTES
    if has_query_bias(config):
        yield "query_key_value_bias", sizes.query_key_value, FLOAT_BYTES
    if has_head_norms(config):
        yield "query_norm", sizes.head, FLOAT_BYTES
        yield "key_norm", sizes.head, FLOAT_BYTES
    yield "attention_output", hidden * sizes.heads, BF16_BYTES
    if config.attention_bias:
        yield "attention_output_bias", hidden, FLOAT_BYTES
    if has_end_norms(config):
        yield "attention_end_norm", hidden, FLOAT_BYTES


def _mlp_parts(config: ModelConfig, sizes: Sizes, index: int) -> Iterator[tuple[str, int, int]]:
    hidden, middle = sizes.hidden, sizes.intermediate
    yield "mlp_norm", hidden, FLOAT_BYTES
    if has_end_norms(config):
        yield "mlp_end_norm", hidden, FLOAT_BYTES
    if config.experts is not None and index in config.expert_layers:
        values = config.experts.count * sizes.expert_intermediate * hidden
        yield "router", sizes.experts * hidden, FLOAT_BYTES
        yield "experts_gate_up", 2 * values, BF16_BYTES
        yield "experts_down", values, BF16_BYTES
        return
    yield "gate_up", 2 * middle * hidden, BF16_BYTES
    yield "down", hidden * middle, BF16_BYTES
    if config.mlp_bias:
        yield "gate_up_bias", 2 * middle, FLOAT_BYTES
        yield "down_bias", hidden, FLOAT_BYTES


def has_query_bias(config: ModelConfig) -> bool:
    """Whether queries, keys and values have biases; Qwen2 has them by default."""
    return config.attention_bias or config.architecture == QWEN2


def has_head_norms(config: ModelConfig) -> bool:
    """Whether each query and key head is normed."""
    return config.architecture in (QWEN3, QWEN3_MOE, *GEMMAS)


def has_end_norms(config: ModelConfig) -> bool:
    """Whether what attention and MLP add to the hidden state is normed, too."""
    return config.architecture in GEMMAS


def identity(size: int, padded_size: int) -> Indices:
    """Place k has value k, and padding has none."""
    places = numpy.arange(padded_size, dtype=numpy.int32)
    places[size:] = NO_PLACE
    return places


def head_channels(config: ModelConfig) -> Indices:
    """Which channel of a head is at each place of a padded one: halves apart, each padded."""
    half, half_padded = config.head_size // 2, Sizes.of(config).head // 2
    first = identity(half, half_padded)
    second = numpy.where(first == NO_PLACE, NO_PLACE, first + half)
    return numpy.concatenate((first, second)).astype(numpy.int32)


def all_head_channels(config: ModelConfig, heads: int) -> Indices:
    """The same for `heads` heads side by side."""
    one = head_channels(config)
    offsets = numpy.arange(heads, dtype=numpy.int32)[:, None] * config.head_size
    return numpy.where(one == NO_PLACE, NO_PLACE, one + offsets).reshape(-1).astype(numpy.int32)


def gate_up_rows(size: int, padded_size: int) -> tuple[Indices, Indices]:
    """Which row of gate, and which of up, is at each output of the joint product.

    An MLP has `size` channels inside, padded.
    """
    rows = identity(size, padded_size).reshape(-1, GATE_GROUP)
    none = numpy.full_like(rows, NO_PLACE)
    gate = numpy.concatenate((rows, none), axis=1).reshape(-1)
    up = numpy.concatenate((none, rows), axis=1).reshape(-1)
    return gate, up


def kv_values(config: ModelConfig) -> int:
    """bf16 values of one block of keys and values, in all layers."""
    return config.layers * config.kv_heads * 2 * BLOCK_TOKENS * Sizes.of(config).head
