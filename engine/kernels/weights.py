"""Packing of a model's weights into the kernels' memory, tensor by tensor as the files have them.

A source gives each tensor by its Hugging Face name and the shape that the config implies: a folder,
or random numbers from the names alone. Nothing is read twice or kept in the files' own form.
"""

import hashlib
import math
from collections.abc import Callable
from ctypes import CDLL, c_void_p
from typing import Protocol

import attrs
import numpy
from numpy.typing import NDArray

from ..model.weight_folder import WeightFolder
from ..model_config.config import ModelConfig
from .binding import FORMATS, Bytes, address_of
from .layout import (
    NO_PLACE,
    Indices,
    Layout,
    Sizes,
    all_head_channels,
    gate_up_rows,
    has_end_norms,
    has_head_norms,
    has_query_bias,
    head_channels,
    identity,
)

# Standard deviation of dummy biases: enough to be seen in any logit.
DUMMY_BIAS = 0.1
Progress = Callable[[float], None]


@attrs.frozen(eq=False)
class Stored:
    """A tensor's values as they are stored, and their format (`FORMATS`)."""

    values: NDArray[numpy.generic]
    format: str


class TensorSource(Protocol):
    """Gives tensors by name."""

    def take(self, name: str, shape: tuple[int, ...]) -> Stored:
        """The tensor. Raises `ModelFolderError` if there is none such."""


@attrs.frozen(eq=False)
class PlannedTensors:
    """Gives nothing, and remembers what was asked for: all that a model takes."""

    taken: dict[str, tuple[int, ...]] = attrs.field(factory=dict)

    def take(self, name: str, shape: tuple[int, ...]) -> Stored:
        """An empty tensor."""
        self.taken[name] = shape
        return Stored(numpy.empty(0, numpy.float32), "F32")


@attrs.define(eq=False)
class FolderTensors:
    """Tensors of an open folder; `progress` gets the fraction of its bytes that were taken."""

    folder: WeightFolder
    progress: Progress
    _bytes_taken: int = attrs.field(default=0, init=False)

    def take(self, name: str, shape: tuple[int, ...]) -> Stored:
        """A view of the mapped file."""
        shard, entry = self.folder.find(name, shape)
        self._bytes_taken += entry.end - entry.begin
        self.progress(min(1.0, self._bytes_taken / max(1, self.folder.bytes_all)))
        return Stored(numpy.frombuffer(shard.values(entry), numpy.uint8), entry.dtype)


@attrs.frozen(eq=False)
class DummyTensors:
    """Random tensors from the names alone: the same in every process.

    Norms are 1, biases small, and matrices scaled by their width. Embeddings are, too: small beside
    what layers add to them, so that a tied head does not just repeat its input.
    """

    def take(self, name: str, shape: tuple[int, ...]) -> Stored:
        """The tensor that `name` and `shape` determine."""
        is_bias = name.endswith(".bias")
        if len(shape) == 1 and not is_bias:
            return Stored(numpy.ones(shape, numpy.float32), "F32")
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        generator = numpy.random.Generator(numpy.random.Philox(seed))
        values = generator.standard_normal(shape, dtype=numpy.float32)
        values *= DUMMY_BIAS if is_bias else 1 / math.sqrt(shape[-1])
        return Stored(values, "F32")


@attrs.frozen(eq=False)
class Packer:
    """Puts tensors of one source into one block of memory."""

    config: ModelConfig
    layout: Layout
    memory: Bytes
    functions: CDLL | None  # None: only asks the source
    threads: int
    source: TensorSource

    def pack_all(self) -> None:
        """Every tensor of the model. Raises `ModelFolderError`."""
        config, sizes = self.config, Sizes.of(self.config)
        vocab, hidden = config.vocab_size, config.hidden_size
        hidden_places = identity(hidden, sizes.hidden)
        for index in range(config.layers):
            self._pack_layer(index, sizes, hidden_places)
        self._pack_norm("norm", "model.norm", hidden_places, hidden)
        embeddings = self.source.take("model.embed_tokens.weight", (vocab, hidden))
        head = embeddings
        if not config.tied_embeddings:
            self._copy_rows("embedding", embeddings, rows=vocab, columns=hidden)
            head = self.source.take("lm_head.weight", (vocab, hidden))
        self._pack("head", head, identity(vocab, sizes.vocab), hidden_places, columns=hidden)

    def _pack_layer(self, index: int, sizes: Sizes, hidden: Indices) -> None:
        config, prefix = self.config, f"model.layers.{index}."
        norms = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
        if has_end_norms(config):
            norms["attention_end_norm"] = norms["mlp_norm"]
            norms["mlp_norm"] = "pre_feedforward_layernorm"
            norms["mlp_end_norm"] = "post_feedforward_layernorm"
        for place, name in norms.items():
            self._pack_norm(f"{index}.{place}", prefix + name, hidden, config.hidden_size)
        self._pack_attention(index, prefix, hidden)
        if index in config.expert_layers:
            self._pack_experts(index, f"{prefix}mlp.", sizes, hidden)
        else:
            self._pack_mlp(index, prefix, sizes, hidden)

    def _pack_attention(self, index: int, prefix: str, hidden: Indices) -> None:
        config, width, begin = self.config, self.config.hidden_size, 0
        for name, heads in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads)):
            rows, outputs = all_head_channels(config, heads), heads * config.head_size
            tensor = f"{prefix}self_attn.{name}_proj"
            weight = self.source.take(f"{tensor}.weight", (outputs, width))
            self._pack(f"{index}.query_key_value", weight, rows, hidden, columns=width, begin=begin)
            if has_query_bias(config):
                place = f"{index}.query_key_value_bias"
                self._pack_floats(place, f"{tensor}.bias", rows, outputs, begin=begin)
            if has_head_norms(config) and name != "v":
                place = f"{index}.{'query' if name == 'q' else 'key'}_norm"
                tensor = f"{prefix}self_attn.{name}_norm"
                self._pack_norm(place, tensor, head_channels(config), config.head_size)
            begin += len(rows)
        self._pack_output(
            f"{index}.attention_output", f"{prefix}self_attn.o_proj", hidden,
            all_head_channels(config, config.heads), inputs=config.heads * config.head_size,
            bias=config.attention_bias,
        )  # fmt: skip

    def _pack_mlp(self, index: int, prefix: str, sizes: Sizes, hidden: Indices) -> None:
        config = self.config
        width, middle = config.hidden_size, config.intermediate_size
        parts = gate_up_rows(middle, sizes.intermediate)
        for name, rows in zip(("gate", "up"), parts, strict=True):
            tensor = f"{prefix}mlp.{name}_proj"
            weight = self.source.take(f"{tensor}.weight", (middle, width))
            self._pack(f"{index}.gate_up", weight, rows, hidden, columns=width)
            if config.mlp_bias:
                self._pack_floats(f"{index}.gate_up_bias", f"{tensor}.bias", rows, middle)
        self._pack_output(
            f"{index}.down", f"{prefix}mlp.down_proj", hidden,
            identity(middle, sizes.intermediate), inputs=middle, bias=config.mlp_bias,
        )  # fmt: skip

    def _pack_experts(self, index: int, prefix: str, sizes: Sizes, hidden: Indices) -> None:
        experts, width = self.config.experts, self.config.hidden_size
        assert experts is not None, "an expert layer's config has its experts"
        middle, columns = experts.intermediate_size, experts.count * width
        router = numpy.full((sizes.experts, sizes.hidden), NO_PLACE, numpy.int32)
        router[: experts.count, :width] = numpy.arange(columns).reshape(-1, width)
        self._pack_floats(
            f"{index}.router", f"{prefix}gate.weight", router.reshape(-1), experts.count, width
        )
        parts = gate_up_rows(middle, sizes.expert_intermediate)
        inside = identity(middle, sizes.expert_intermediate)
        for number in range(experts.count):
            tensor = f"{prefix}experts.{number}."
            for name, rows in zip(("gate", "up"), parts, strict=True):
                weight = self.source.take(f"{tensor}{name}_proj.weight", (middle, width))
                place, begin = f"{index}.experts_gate_up", number * len(rows)
                self._pack(place, weight, rows, hidden, columns=width, begin=begin)
            weight = self.source.take(f"{tensor}down_proj.weight", (width, middle))
            place, begin = f"{index}.experts_down", number * sizes.hidden
            self._pack(place, weight, hidden, inside, columns=middle, begin=begin)

    def _pack_output(
        self, place: str, tensor: str, hidden: Indices, columns: Indices, *, inputs: int, bias: bool
    ) -> None:
        """A product whose outputs are added to the hidden state."""
        width = self.config.hidden_size
        weight = self.source.take(f"{tensor}.weight", (width, inputs))
        self._pack(place, weight, hidden, columns, columns=inputs)
        if bias:
            self._pack_floats(f"{place}_bias", f"{tensor}.bias", hidden, width)

    def _pack(
        self, place: str, weight: Stored, row_of: Indices, column_of: Indices, *, columns: int,
        begin: int = 0,
    ) -> None:  # fmt: skip
        if self.functions is None:
            return
        self.functions.triolet_pack(
            self._address(place), len(column_of), begin, len(row_of), address_of(row_of),
            address_of(column_of), address_of(weight.values), FORMATS[weight.format], columns,
            self.threads,
        )  # fmt: skip

    def _copy_rows(self, place: str, table: Stored, *, rows: int, columns: int) -> None:
        if self.functions is None:
            return
        self.functions.triolet_copy_rows(
            self._address(place), Sizes.of(self.config).hidden, address_of(table.values),
            FORMATS[table.format], rows, columns, self.threads,
        )  # fmt: skip

    def _pack_norm(self, place: str, name: str, places: Indices, count: int) -> None:
        offset = self.config.norm_offset
        self._pack_floats(place, f"{name}.weight", places, count, offset=offset)

    def _pack_floats(
        self, place: str, name: str, places: Indices, *shape: int, begin: int = 0,
        offset: float = 0.0,
    ) -> None:  # fmt: skip
        stored = self.source.take(name, shape)
        if self.functions is None:
            return
        values = numpy.empty(count := math.prod(shape), numpy.float32)
        self.functions.triolet_to_floats(
            address_of(values), address_of(stored.values), FORMATS[stored.format], count
        )
        part = self.layout.parts[place]
        target = self.memory[part.begin : part.end].view(numpy.float32)[begin:]
        there = numpy.flatnonzero(places >= 0)
        target[there] = values[places[there]] + numpy.float32(offset)

    def _address(self, place: str) -> c_void_p:
        return c_void_p(address_of(self.memory) + self.layout.parts[place].begin)


def plan_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a model of this config takes."""
    planned = PlannedTensors()
    empty = numpy.empty(0, numpy.uint8)
    Packer(config, Layout.of(config), empty, None, 1, planned).pack_all()
    return planned.taken
