"""A model in the kernels' memory, its cache, and one step's forward pass as one call.

Must not know requests, files, or where tokens come from.
"""

from collections.abc import Sequence
from ctypes import c_void_p

import attrs
import numpy
from numpy.typing import NDArray

from ..model.rotary_frequencies import rotary_frequencies, rotary_scale
from ..model_config import ModelConfig
from .binding import Kernels, LayerWeights, ModelWeights, StepBatch
from .layout import BF16_BYTES, Layout, Sizes, kv_values
from .memory import Bytes, address_of, take_memory

Floats = NDArray[numpy.float32]
Integers = NDArray[numpy.int32]


@attrs.frozen(eq=False)
class ForwardStep:
    """Sequences in order: sequence s computes `counts[s]` tokens from position `begins[s]` on.

    `rows[s]` is its row of the block tables; `token_ids` are of all sequences, one after the other.
    `logit_tokens` are indices into them. All int32, contiguous.
    """

    token_ids: Integers
    rows: Integers
    begins: Integers
    counts: Integers
    block_tables: Integers  # (rows, blocks of a sequence)
    logit_tokens: Integers


@attrs.define(eq=False)
class NativeModel:
    """Weights, cache and working memory; one thread at a time uses it.

    `tokens_max` and `sequences_max` bound a step, `logit_rows_max` the logits of one call.
    """

    config: ModelConfig
    kernels: Kernels
    threads: int
    tokens_max: int
    sequences_max: int
    _weights: ModelWeights
    _batch: StepBatch
    _scratch: Bytes
    _logits: Floats
    # What the structures point to.
    _kept: tuple[object, ...]

    @classmethod
    def of(
        cls, config: ModelConfig, kernels: Kernels, memory: Bytes, *, positions: int, blocks: int,
        threads: int, tokens_max: int, sequences_max: int, logit_rows_max: int,
    ) -> "NativeModel":  # fmt: skip
        """Take the cache and working memory for weights that lie in `memory` by the layout."""
        sizes, layout = Sizes.of(config), Layout.of(config)
        rotation = rotation_table(config, positions)
        cache = take_memory(blocks * kv_values(config) * BF16_BYTES)
        layers = (LayerWeights * config.layers)()
        pointers = _part_pointers(layout, memory)
        for index, layer in enumerate(layers):
            for name, _ in LayerWeights._fields_[:-1]:
                setattr(layer, name, pointers.get(f"{index}.{name}"))
            layer.window = config.windows[index]
        weights = ModelWeights(
            hidden=config.hidden_size,
            hidden_padded=sizes.hidden,
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_size=config.head_size,
            head_padded=sizes.head,
            intermediate_padded=sizes.intermediate,
            vocab=config.vocab_size,
            vocab_padded=sizes.vocab,
            positions=positions,
            blocks=blocks,
            norm_epsilon=config.norm_epsilon,
            attention_scale=config.query_scale,
            layer=layers,
            embedding=pointers.get("embedding"),
            head=pointers["head"],
            norm=pointers["norm"],
            rotation=c_void_p(address_of(rotation)),
            kv=c_void_p(address_of(cache)),
        )
        scratch = kernels.scratch_bytes(
            weights, tokens=tokens_max, sequences=sequences_max, threads=threads
        )
        return cls(
            config=config,
            kernels=kernels,
            threads=threads,
            tokens_max=tokens_max,
            sequences_max=sequences_max,
            weights=weights,
            batch=StepBatch(),
            scratch=take_memory(scratch),
            logits=take_memory(logit_rows_max * sizes.vocab * 4).view(numpy.float32).reshape(
                logit_rows_max, sizes.vocab
            ),
            kept=(memory, rotation, cache, layers),
        )  # fmt: skip

    def forward(self, step: ForwardStep) -> Floats:
        """Compute the step into the cache; the wanted logits, (wanted, vocabulary padded).

        The result is working memory, overwritten by the next call. Raises `NativeFault`.
        """
        self._fill(step)
        if len(step.token_ids) > self.tokens_max or len(step.rows) > self.sequences_max:
            raise ValueError(f"a step of {len(step.token_ids)} tokens in {len(step.rows)} rows")
        self.kernels.forward(
            self._weights,
            self._batch,
            scratch=address_of(self._scratch),
            logits=address_of(self._logits),
            threads=self.threads,
        )
        return self._logits[: len(step.logit_tokens)]

    def logits(self, step: ForwardStep, tokens: Integers) -> Floats:
        """Logits of other tokens of the step that was computed last; as `forward` gives them."""
        self._fill(attrs.evolve(step, logit_tokens=tokens))
        self.kernels.logits(
            self._weights,
            self._batch,
            scratch=address_of(self._scratch),
            logits=address_of(self._logits),
            threads=self.threads,
        )
        return self._logits[: len(tokens)]

    @property
    def logit_rows_max(self) -> int:
        """The most rows of logits that one call gives."""
        return len(self._logits)

    def _fill(self, step: ForwardStep) -> None:
        if len(step.logit_tokens) > self.logit_rows_max:
            raise ValueError(f"{len(step.logit_tokens)} rows of logits, of {self.logit_rows_max}")
        batch = self._batch
        batch.tokens = len(step.token_ids)
        batch.sequences = len(step.rows)
        batch.logit_rows = len(step.logit_tokens)
        batch.table_stride = step.block_tables.shape[1]
        for name, array in (
            ("token_ids", step.token_ids), ("rows", step.rows), ("begins", step.begins),
            ("counts", step.counts), ("block_tables", step.block_tables),
            ("logit_tokens", step.logit_tokens),
        ):  # fmt: skip
            setattr(batch, name, address_of(array))


def int32s(values: Sequence[int]) -> Integers:
    """The values as the kernels take them."""
    return numpy.array(values, dtype=numpy.int32)


def rotation_table(config: ModelConfig, positions: int) -> Floats:
    """Cosines and sines of half a head at each position, (positions, head padded).

    Angles are float64: at position 100 000 a float32 angle is off by up to 0.004.
    """
    half, half_padded = config.head_size // 2, Sizes.of(config).head // 2
    frequencies = numpy.array(rotary_frequencies(config.head_size, config.rope))
    angles = numpy.arange(positions, dtype=numpy.float64)[:, None] * frequencies
    scale = rotary_scale(config.rope)
    table = numpy.zeros((positions, 2 * half_padded), numpy.float32)
    table[:, :half] = numpy.cos(angles) * scale
    table[:, half_padded : half_padded + half] = numpy.sin(angles) * scale
    return table


def _part_pointers(layout: Layout, memory: Bytes) -> dict[str, c_void_p]:
    base = address_of(memory)
    return {name: c_void_p(base + part.begin) for name, part in layout.parts.items()}
