"""Llama and every family whose layers are the same, over paged keys and values.

One forward pass takes the new tokens of all rows of a step, one after another, whatever mixture of
prefill and decode that is. It reads top to bottom as in the paper; what makes it bitwise or plain
is in `layers` and `attention`. Must not know requests, blocks or files.

Letters as in `layers`; R rows of logits, V vocabulary.
"""

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from ..model_config import ModelConfig
from .attention import AttentionPlan, HeadShape, KvCache, paged_attention, write_cache
from .layers import (
    Linear,
    RotaryTable,
    make_linear,
    padded_rows,
    rms_norm,
    rotate,
    silu_and_multiply,
)
from .loader import WeightSource


@attrs.frozen(eq=False)
class ForwardBatch:
    """One step's tokens, one after another. All tensors are on the model's device."""

    token_ids_T: Tensor
    positions_T: Tensor
    attention: AttentionPlan
    logit_tokens_R: Tensor  # the tokens whose logits are wanted, as indices into T


@attrs.frozen(eq=False)
class LlamaLayer:
    """Weights of one layer. Projections with the same input are one product."""

    attention_norm: Tensor
    query_key_value: Linear
    attention_output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear


@attrs.frozen(eq=False)
class Llama:
    """A loaded model. Immutable; the cache is given with each pass."""

    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    _embedding_VN: Tensor
    _layers: list[LlamaLayer]
    _norm: Tensor
    _head: Linear
    _rotary: RotaryTable

    @property
    def head_shape(self) -> HeadShape:
        """What the cache and the attention plan are made for."""
        return _head_shape(self.config)

    def forward(self, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """Write the keys and values of these tokens; return the wanted logits, (R, V) float32.

        Without wanted logits (R = 0) the last norm and the head are skipped.
        """
        rows = padded_rows(len(batch.token_ids_T))
        padding = (0, rows - len(batch.token_ids_T))
        hidden = functional.embedding(
            functional.pad(batch.token_ids_T, padding), self._embedding_VN
        )
        rotation = self._rotary.at(functional.pad(batch.positions_T, padding))
        for index, layer in enumerate(self._layers):
            turned_and_value = self._attention_input(layer, hidden, rotation)
            attended = self._attend(turned_and_value, batch.attention, cache, index)
            hidden = hidden + layer.attention_output(attended)
            normed = rms_norm(hidden, layer.mlp_norm, self.config.norm_epsilon)
            hidden = hidden + layer.down(silu_and_multiply(layer.gate_up(normed)))
        wanted = len(batch.logit_tokens_R)
        if wanted == 0:
            return hidden.new_empty((0, self.config.vocab_size), dtype=torch.float32)
        last = hidden.new_zeros((padded_rows(wanted), self.config.hidden_size))
        last[:wanted] = hidden[batch.logit_tokens_R]
        normed = rms_norm(last, self._norm, self.config.norm_epsilon)
        return self._head(normed)[:wanted].float()

    def _attention_input(
        self, layer: LlamaLayer, hidden: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys side by side, (T, H + K, D) float32, and values, (T, K, D)."""
        normed = rms_norm(hidden, layer.attention_norm, self.config.norm_epsilon)
        heads_THD = layer.query_key_value(normed).view(len(hidden), -1, self.config.head_size)
        turned = self.config.heads + self.config.kv_heads
        return rotate(heads_THD[:, :turned], rotation), heads_THD[:, turned:]

    def _attend(
        self,
        turned_and_value: tuple[Tensor, Tensor],
        plan: AttentionPlan,
        cache: KvCache,
        index: int,
    ) -> Tensor:
        """Keep the step's keys and values, then attend; (T, H × D), padded rows are zero."""
        turned_THD, value_TKD = turned_and_value
        tokens, heads = len(plan.slots), self.config.heads
        key_TKD = turned_THD[:tokens, heads:]
        write_cache(cache, index, plan, keys_TKD=key_TKD, values_TKD=value_TKD[:tokens])
        query_THD = turned_THD[:tokens, :heads].contiguous()
        attended_TN = paged_attention(query_THD, cache, index, plan).reshape(tokens, -1)
        padding = len(turned_THD) - tokens
        return functional.pad(attended_TN, (0, 0, 0, padding)).to(self.dtype)


def load_llama(
    config: ModelConfig, weights: WeightSource, *, positions: int, bitwise: bool,
    dtype: torch.dtype, device: torch.device,
) -> Llama:  # fmt: skip
    """Take every weight that `config` implies; `positions` bounds the positions ever computed.

    Raises `ModelFolderError` for a missing tensor or a wrong shape.
    """
    width, vocabulary = config.hidden_size, config.vocab_size
    embedding = weights.take("model.embed_tokens.weight", (vocabulary, width))
    head = embedding
    if not config.tied_embeddings:
        head = weights.take("lm_head.weight", (vocabulary, width))
    return Llama(
        config=config,
        dtype=dtype,
        device=device,
        embedding_VN=embedding,
        layers=[
            _load_layer(config, weights, f"model.layers.{index}.", bitwise=bitwise)
            for index in range(config.layers)
        ],
        norm=weights.take("model.norm.weight", (width,)),
        head=make_linear(head, bitwise=bitwise),
        rotary=RotaryTable.of(
            config.head_size,
            positions,
            theta=config.rope_theta,
            scaling=config.rope_scaling,
            device=device,
        ),
    )


def _load_layer(
    config: ModelConfig, weights: WeightSource, prefix: str, *, bitwise: bool
) -> LlamaLayer:
    width, middle = config.hidden_size, config.intermediate_size
    queries = config.heads * config.head_size
    keys = config.kv_heads * config.head_size

    def linear(*parts: tuple[str, int], inputs: int = width) -> Linear:
        taken = [weights.take(f"{prefix}{name}.weight", (rows, inputs)) for name, rows in parts]
        return make_linear(torch.cat(taken) if len(taken) > 1 else taken[0], bitwise=bitwise)

    return LlamaLayer(
        attention_norm=weights.take(f"{prefix}input_layernorm.weight", (width,)),
        query_key_value=linear(
            ("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys)
        ),
        attention_output=linear(("self_attn.o_proj", width), inputs=queries),
        mlp_norm=weights.take(f"{prefix}post_attention_layernorm.weight", (width,)),
        gate_up=linear(("mlp.gate_proj", middle), ("mlp.up_proj", middle)),
        down=linear(("mlp.down_proj", width), inputs=middle),
    )


def _head_shape(config: ModelConfig) -> HeadShape:
    return HeadShape(config.heads, config.kv_heads, config.head_size)
