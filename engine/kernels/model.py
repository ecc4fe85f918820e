"""A model in the kernels' memory, its cache, and one step's forward pass as one call."""

from collections.abc import Callable, Mapping, Sequence
from ctypes import CDLL, Array, byref, c_int64, c_void_p

import attrs
import numpy
from numpy.typing import NDArray

from ..model_config.config import GELU_TANH, ModelConfig
from ..model_config.rope import Rope, rotary_frequencies, rotary_scale
from .binding import (
    LAYER_PARTS,
    Bytes,
    LayerPointers,
    ModelWeights,
    StepBatch,
    address_of,
    take_memory,
)
from .layout import BF16_BYTES, Layout, Sizes, kv_values
from .sampler import SampleCall

# Between two messages of progress: half a second's on a slow machine.
POPULATED_BYTES = 2**28
Floats = NDArray[numpy.float32]
Integers = NDArray[numpy.int32]


@attrs.frozen(eq=False)
class GivenEmbeddings:
    """Hidden states that some tokens of a step begin with, and where each token's is (0: nowhere).

    `rows` are kept because the addresses point into them.
    """

    addresses: NDArray[numpy.uint64]  # (tokens)
    rows: tuple[Floats, ...]

    @classmethod
    def of(cls, tokens: int, spans: Sequence[tuple[int, Floats]]) -> "GivenEmbeddings":
        """Addresses for so many tokens; a span is its first token and rows, (k, hidden size)."""
        addresses = numpy.zeros(tokens, dtype=numpy.uint64)
        for begin, rows in spans:
            offsets = numpy.arange(len(rows), dtype=numpy.uint64) * numpy.uint64(rows.strides[0])
            addresses[begin : begin + len(rows)] = offsets + numpy.uint64(address_of(rows))
        return cls(addresses, tuple(rows for _, rows in spans))


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
    embeddings: GivenEmbeddings | None = None
    # Logits of other tokens are asked for later. If not, the last layer is computed for these only.
    keeps_all: bool = False


@attrs.frozen(eq=False)
class PreparedStep:
    """A step that the kernels can be called with; values of its arrays may change, sizes not."""

    step: ForwardStep
    batch: StepBatch
    logits: Floats  # working memory of the model's


@attrs.define(eq=False)
class NativeModel:
    """Weights, cache and working memory; one thread at a time uses it.

    `tokens_max` and `sequences_max` bound a step, `logit_rows_max` the logits of one call.
    """

    config: ModelConfig
    functions: CDLL  # `declare_functions`
    threads: int
    tokens_max: int
    sequences_max: int
    _weights: ModelWeights
    _scratch: Bytes
    _logits: Floats
    _cache: Bytes
    # Owners of the memory that the structures point to.
    _kept: tuple[object, ...]
    _scratch_address: int = attrs.field(init=False)
    _logits_address: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._scratch_address = address_of(self._scratch)
        self._logits_address = address_of(self._logits)

    @classmethod
    def of(
        cls, config: ModelConfig, functions: CDLL, memory: Bytes, *, positions: int, blocks: int,
        threads: int, tokens_max: int, sequences_max: int, logit_rows_max: int,
        rotations: Floats | None = None, cache: Bytes | None = None,
    ) -> "NativeModel":  # fmt: skip
        """Take working memory for weights that lie in `memory` by the layout.

        `rotations` are the tables (`fill_rotations`) and `cache` is memory of `cache_bytes`, where
        the caller has them.
        """
        sizes = Sizes.of(config)
        if rotations is None:
            rotations = numpy.zeros(rotations_shape(config, positions), numpy.float32)
            fill_rotations(config, rotations)
        if cache is None:
            cache = take_memory(cache_bytes(config, blocks))
        pointers = _part_pointers(Layout.of(config), memory)
        layers = _layers(config, pointers, rotations)
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
            **_expert_fields(config, sizes),
            gelu=config.activation == GELU_TANH,
            norm_epsilon=config.norm_epsilon,
            attention_scale=config.query_scale,
            embedding_scale=config.embedding_scale,
            logit_softcap=config.logit_softcap or 0.0,
            layer=layers,
            embedding=pointers.get("embedding"),
            head=pointers["head"],
            norm=pointers["norm"],
            kv=c_void_p(address_of(cache)),
        )
        scratch = functions.triolet_scratch_bytes(
            byref(weights), tokens_max, sequences_max, threads
        )
        return cls(
            config=config,
            functions=functions,
            threads=threads,
            tokens_max=tokens_max,
            sequences_max=sequences_max,
            weights=weights,
            scratch=take_memory(scratch),
            logits=take_memory(logit_rows_max * sizes.vocab * 4).view(numpy.float32).reshape(
                logit_rows_max, sizes.vocab
            ),
            cache=cache,
            kept=(memory, rotations, layers),
        )  # fmt: skip

    def populate_cache(self, progress: Callable[[float], None]) -> None:
        """Give the cache all its pages now: none is lacking later, and no step waits for one.

        Raises `MemoryError`. `progress` gets the fraction that is done.
        """
        begin, size = address_of(self._cache), len(self._cache)
        for at in range(0, size, POPULATED_BYTES):
            piece = min(POPULATED_BYTES, size - at)
            self.functions.triolet_populate(begin + at, piece, self.threads)
            progress((at + piece) / size)

    def forward(self, step: ForwardStep) -> Floats:
        """Compute the step into the cache; the wanted logits, (wanted, vocabulary padded).

        The result is working memory, overwritten by the next call. Raises `NativeFault`.
        """
        return self.compute(self.prepare(step))

    def prepare(self, step: ForwardStep) -> PreparedStep:
        """Prepare a step for `compute`, any number of times. Raises `ValueError`: too large."""
        if len(step.token_ids) > self.tokens_max or len(step.rows) > self.sequences_max:
            raise ValueError(f"a step of {len(step.token_ids)} tokens in {len(step.rows)} rows")
        if len(step.logit_tokens) > self.logit_rows_max:
            raise ValueError(f"{len(step.logit_tokens)} rows of logits, of {self.logit_rows_max}")
        return PreparedStep(step, _step_batch(step), self._logits[: len(step.logit_tokens)])

    def compute(self, prepared: PreparedStep) -> Floats:
        """Compute a prepared step, as `forward` does."""
        self.functions.triolet_forward(*self._arguments(prepared))
        return prepared.logits

    def compute_and_draw(
        self, prepared: PreparedStep, call: SampleCall, sample_scratch: int
    ) -> float:
        """`compute`, then the draws of `call` from `prepared.logits`, without a return in between.

        Says how long the pass took, seconds.
        """
        forward_ns = c_int64()
        self.functions.triolet_step(
            *self._arguments(prepared), byref(call), sample_scratch, byref(forward_ns)
        )
        return forward_ns.value / 1e9

    def logits(self, step: ForwardStep, tokens: Integers) -> Floats:
        """Logits of other tokens of the step that was computed last; as `forward` gives them.

        Raises `NativeFault`, and `ValueError` for a step that does not keep all tokens.
        """
        if not step.keeps_all:
            raise ValueError("only the tokens named have got as far as logits")
        prepared = self.prepare(attrs.evolve(step, logit_tokens=tokens))
        self.functions.triolet_logits(*self._arguments(prepared))
        return prepared.logits

    def _arguments(self, prepared: PreparedStep) -> tuple[object, ...]:
        """Arguments of all passes."""
        batch, scratch = byref(prepared.batch), self._scratch_address
        return byref(self._weights), batch, scratch, self._logits_address, self.threads

    @property
    def logit_rows_max(self) -> int:
        """The most rows of logits that one call gives."""
        return len(self._logits)


def _step_batch(step: ForwardStep) -> StepBatch:
    given = step.embeddings
    return StepBatch(
        tokens=len(step.token_ids),
        sequences=len(step.rows),
        logit_rows=len(step.logit_tokens),
        table_stride=step.block_tables.shape[1],
        keeps_all=step.keeps_all,
        token_ids=address_of(step.token_ids),
        rows=address_of(step.rows),
        begins=address_of(step.begins),
        counts=address_of(step.counts),
        block_tables=address_of(step.block_tables),
        logit_tokens=address_of(step.logit_tokens),
        embeddings=None if given is None else address_of(given.addresses),
    )


def int32s(values: Sequence[int]) -> Integers:
    """The values as the kernels take them."""
    return numpy.array(values, dtype=numpy.int32)


def cache_bytes(config: ModelConfig, blocks: int) -> int:
    """Memory of so many blocks."""
    return blocks * kv_values(config) * BF16_BYTES


def rotations_shape(config: ModelConfig, positions: int) -> tuple[int, int, int]:
    """Shape of the rotation tables: (windows, positions, head padded)."""
    return len(_windows(config)), positions, Sizes.of(config).head


def fill_rotations(config: ModelConfig, rotations: Floats) -> None:
    """Write the table of each window, in ascending order of windows."""
    for table, window in zip(rotations, _windows(config), strict=True):
        rope = config.window_rope if window else config.rope
        table[:] = rotation_table(config, len(table), rope)


def _windows(config: ModelConfig) -> list[int]:
    return sorted(set(config.windows))


def rotation_table(config: ModelConfig, positions: int, rope: Rope) -> Floats:
    """Cosines and sines of half a head at each position, (positions, head padded).

    Angles are float64: at position 100 000 a float32 angle is off by up to 0.004.
    """
    half, half_padded = config.head_size // 2, Sizes.of(config).head // 2
    frequencies = numpy.array(rotary_frequencies(config.head_size, rope))
    angles = numpy.arange(positions, dtype=numpy.float64)[:, None] * frequencies
    scale = rotary_scale(rope)
    table = numpy.zeros((positions, 2 * half_padded), numpy.float32)
    table[:, :half] = numpy.cos(angles) * scale
    table[:, half_padded : half_padded + half] = numpy.sin(angles) * scale
    return table


def _expert_fields(config: ModelConfig, sizes: Sizes) -> dict[str, int]:
    experts = config.experts
    if experts is None:
        return {}
    return {
        "experts": experts.count,
        "experts_padded": sizes.experts,
        "experts_chosen": experts.chosen,
        "experts_normalized": experts.normalized,
        "expert_intermediate_padded": sizes.expert_intermediate,
    }


def _layers(
    config: ModelConfig, pointers: Mapping[str, c_void_p], rotations: Floats
) -> "Array[LayerPointers]":
    table_of = dict(zip(_windows(config), rotations, strict=True))
    layers = (LayerPointers * config.layers)()
    for index, layer in enumerate(layers):
        for name in LAYER_PARTS:
            setattr(layer, name, pointers.get(f"{index}.{name}"))
        layer.window = config.windows[index]
        layer.rotation = c_void_p(address_of(table_of[layer.window]))
    return layers


def _part_pointers(layout: Layout, memory: Bytes) -> dict[str, c_void_p]:
    base = address_of(memory)
    return {name: c_void_p(base + part.begin) for name, part in layout.parts.items()}
