"""A model's architecture, read from `config.json` without torch.

The folder is in Hugging Face format and may come from anywhere: every number is checked for type
and range, and what this engine cannot compute exactly as trained is refused by name instead of
being computed differently. What a config leaves out means what `transformers` takes it to mean.
"""

import math
import pathlib
from collections.abc import Mapping
from types import MappingProxyType

import attrs

from .experts import Experts, read_experts
from .folder import CONFIG_FILE, ConfigFields, check_folder, read_fields
from .rope import POSITIONS_MAX, Rope, read_rope, read_window_ropes, stretched_length

GENERATION_CONFIG_FILE = "generation_config.json"
# No published dense model comes near these; they keep products of two sizes far below 2**63.
VOCAB_SIZE_MAX = 2**22
WIDTH_MAX = 2**20
LAYERS_MAX = 2**12
POSITIONS_DEFAULT = 2048
LLAMA, MISTRAL = "LlamaForCausalLM", "MistralForCausalLM"
QWEN2, QWEN3, QWEN3_MOE = "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"
GEMMA3 = "Gemma3ForCausalLM"
# Text and pictures; its text part is served.
GEMMA3_MULTIMODAL = "Gemma3ForConditionalGeneration"
GEMMAS = (GEMMA3, GEMMA3_MULTIMODAL)
_QWEN = {
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA3_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
# Fields of a whole model that has a text part; they go before the part's own.
_OF_THE_WHOLE = (
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "quantization_config",
    "tie_word_embeddings",
    "torch_dtype",
)
# {architecture: what fields that its config.json does not have at all mean}
ARCHITECTURES: MappingProxyType[str, Mapping[str, object]] = MappingProxyType(
    {
        LLAMA: {},
        MISTRAL: {
            "max_position_embeddings": 131_072,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
        QWEN2: _QWEN,
        QWEN3: {**_QWEN, "head_dim": 128},
        QWEN3_MOE: {
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 4,
            "sliding_window": 4096,
        },
        GEMMA3: _GEMMA3_DEFAULTS,
        GEMMA3_MULTIMODAL: _GEMMA3_DEFAULTS,
    }
)
DTYPES = ("bfloat16", "float16", "float32")
# Window of a layer that attends to the whole sequence.
NO_WINDOW = 0
_FULL, _SLIDING = "full_attention", "sliding_attention"
# Activations of a gated MLP; the second is GELU by its formula with tanh.
SILU, GELU_TANH = "silu", "gelu_pytorch_tanh"


@attrs.frozen(kw_only=True)
class ModelConfig:
    """Architecture and token ids of one model. Sizes are numbers of values, lengths of tokens."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_size: int
    # Window of each layer: so many tokens, the last its own, are what a token attends to.
    windows: tuple[int, ...]
    # Biases that some families leave open: of attention's four products, and of the MLP.
    attention_bias: bool
    mlp_bias: bool
    activation: str  # SILU or GELU_TANH
    norm_epsilon: float
    # Norms multiply by their weight plus this: 0, or 1 where weights are stored less 1.
    norm_offset: float
    # Embeddings are multiplied by it, rounded to the dtype of the weights.
    embedding_scale: float
    # Queries are multiplied by it before they meet keys.
    query_scale: float
    rope: Rope
    # Rope of layers with a window; the same as `rope` but for families that turn them otherwise.
    window_rope: Rope
    # Logits beyond it are bent back: softcap * tanh(logits / softcap). None: they are not.
    logit_softcap: float | None
    # Mixture of experts, and the layers that have it for an MLP; the others are dense.
    experts: Experts | None
    expert_layers: frozenset[int]
    max_model_len: int
    tied_embeddings: bool
    dtype: str  # of the weights as trained
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.windows)


@attrs.frozen
class ModelLimits:
    """The part of a model that bounds requests; any architecture has it."""

    vocab_size: int
    max_model_len: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    # 0 where the folder does not say.
    hidden_size: int = 0


def load_model_config(folder: str | pathlib.Path) -> ModelConfig:
    """Read and check `config.json` and `generation_config.json` in `folder`.

    Raises `ModelFolderError`, naming the file and the field, also for architectures and variants
    that this engine does not compute.
    """
    check_folder(pathlib.Path(folder))
    given = read_fields(pathlib.Path(folder) / CONFIG_FILE)
    architecture = _architecture(given)
    fields = _with_defaults(given, architecture)
    limits = _limits(pathlib.Path(folder), fields, architecture)
    _refuse_variants(fields, architecture)
    heads = fields.integer("num_attention_heads", WIDTH_MAX)
    hidden_size = fields.integer("hidden_size", WIDTH_MAX)
    kv_heads = fields.integer("num_key_value_heads", WIDTH_MAX, default=heads)
    head_size = fields.integer("head_dim", WIDTH_MAX, default=max(1, hidden_size // heads))
    if heads % kv_heads:
        raise fields.fault("num_attention_heads", f"{heads} is no multiple of {kv_heads} kv heads")
    if head_size % 2:
        raise fields.fault("head_dim", f"{head_size} is odd; rotary embedding needs pairs")
    windows = _windows(fields, architecture)
    rope, window_rope = _ropes(fields, architecture)
    experts, expert_layers = None, frozenset[int]()
    if architecture == QWEN3_MOE:
        experts, expert_layers = read_experts(fields, len(windows))
    gemma = architecture in GEMMAS
    query_size = fields.number("query_pre_attn_scalar") if gemma else head_size
    return ModelConfig(
        architecture=architecture,
        vocab_size=limits.vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", WIDTH_MAX),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        windows=windows,
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        activation=GELU_TANH if gemma else SILU,
        norm_epsilon=fields.number("rms_norm_eps", default=1e-6),
        norm_offset=1.0 if gemma else 0.0,
        embedding_scale=math.sqrt(hidden_size) if gemma else 1.0,
        query_scale=1.0 / math.sqrt(query_size),
        rope=rope,
        window_rope=window_rope,
        logit_softcap=_softcap(fields) if gemma else None,
        experts=experts,
        expert_layers=expert_layers,
        max_model_len=limits.max_model_len,
        tied_embeddings=fields.flag("tie_word_embeddings"),
        dtype=_dtype(fields),
        bos_token_id=limits.bos_token_id,
        eos_token_ids=limits.eos_token_ids,
    )


def load_model_limits(folder: str | pathlib.Path) -> ModelLimits:
    """Vocabulary, length and end tokens alone, where nothing is computed with the model.

    Raises `ModelFolderError`; an unknown architecture is no error here.
    """
    check_folder(pathlib.Path(folder))
    fields = read_fields(pathlib.Path(folder) / CONFIG_FILE)
    names = fields.values.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    return _limits(pathlib.Path(folder), _with_defaults(fields, str(name)), str(name))


def _limits(folder: pathlib.Path, fields: ConfigFields, architecture: str) -> ModelLimits:
    """End and begin tokens are the generation config's; where that has none, the config's."""
    vocab_size = fields.integer("vocab_size", VOCAB_SIZE_MAX)
    eos = fields.token_ids("eos_token_id", vocab_size)
    bos = fields.token_ids("bos_token_id", vocab_size)
    generation_path = folder / GENERATION_CONFIG_FILE
    if generation_path.exists():
        generation = read_fields(generation_path)
        eos = generation.token_ids("eos_token_id", vocab_size) or eos
        bos = generation.token_ids("bos_token_id", vocab_size) or bos
    return ModelLimits(
        vocab_size=vocab_size,
        max_model_len=_length(fields, architecture),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
        hidden_size=fields.integer("hidden_size", WIDTH_MAX, least=0, default=0),
    )


def _architecture(fields: ConfigFields) -> str:
    names = fields.values.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in list(ARCHITECTURES):
        served = ", ".join(ARCHITECTURES)
        if isinstance(names, list) and len(names) == 1:
            raise fields.unserved("architectures", f"{names[0]!s:.80} is not served: {served} are")
        raise fields.fault("architectures", f"must be a list of one name, not {names!r:.80}")
    return str(names[0])


def _with_defaults(fields: ConfigFields, architecture: str) -> ConfigFields:
    given = fields.values
    if architecture == GEMMA3_MULTIMODAL:
        whole = {name: given[name] for name in _OF_THE_WHOLE if given.get(name) is not None}
        given = {**(fields.mapping("text_config") or {}), **whole}
    return ConfigFields(fields.path, {**ARCHITECTURES.get(architecture, {}), **given})


def _positions(fields: ConfigFields) -> int:
    return fields.integer("max_position_embeddings", POSITIONS_MAX, default=POSITIONS_DEFAULT)


def _length(fields: ConfigFields, architecture: str) -> int:
    positions = _positions(fields)
    # Gemma 3 counts the positions that its stretch was made for; others those before it.
    return positions if architecture in GEMMAS else stretched_length(fields, positions)


def _ropes(fields: ConfigFields, architecture: str) -> tuple[Rope, Rope]:
    """Ropes of layers that see all, and of those with a window."""
    if architecture in GEMMAS:
        return read_window_ropes(fields, _positions(fields))
    rope = read_rope(fields, _positions(fields))
    return rope, rope


def _softcap(fields: ConfigFields) -> float | None:
    if fields.values.get("final_logit_softcapping") is None:
        return None
    return fields.number("final_logit_softcapping")


def _refuse_variants(fields: ConfigFields, architecture: str) -> None:
    """Refuse variants that another implementation serves, and this engine does not."""
    if architecture in (MISTRAL, QWEN2) and fields.flag("attention_bias"):
        # Qwen2 has its biases by default, and none on attention's output.
        raise fields.unserved("attention_bias", f"is not served with {architecture}")
    if architecture != LLAMA and fields.flag("mlp_bias"):
        raise fields.unserved("mlp_bias", f"is not served with {architecture}")
    if architecture in GEMMAS:
        _refuse_gemma_variants(fields)
    elif fields.values.get("hidden_act", SILU) != SILU:
        raise fields.unserved("hidden_act", f"is not served: only {SILU} is")
    if fields.values.get("quantization_config") is not None:
        raise fields.unserved("quantization_config", "is not served: use unquantised weights")


def _refuse_gemma_variants(fields: ConfigFields) -> None:
    if fields.values.get("hidden_activation") != GELU_TANH:
        raise fields.unserved("hidden_activation", f"is not served: only {GELU_TANH} is")
    # No Gemma 3 has it, and `transformers` does not look at it there.
    if fields.values.get("attn_logit_softcapping") is not None:
        raise fields.unserved("attn_logit_softcapping", "is not served with Gemma 3")
    if fields.values.get("use_bidirectional_attention") not in (None, False):
        raise fields.unserved(
            "use_bidirectional_attention", "is not served: only causal models are"
        )


def _windows(fields: ConfigFields, architecture: str) -> tuple[int, ...]:
    """The window of each layer, by the rule of each family."""
    layers = fields.integer("num_hidden_layers", LAYERS_MAX)
    has_window = fields.values.get("sliding_window") is not None
    if architecture in (QWEN2, QWEN3, QWEN3_MOE):
        has_window = has_window and fields.flag("use_sliding_window")
    window = fields.integer("sliding_window", POSITIONS_MAX) if has_window else NO_WINDOW
    types = fields.values.get("layer_types")
    if architecture in GEMMAS:
        types = _types_of_pattern(fields, layers) if types is None else types
        return _windows_of_types(fields, types, window, layers)
    if architecture in (QWEN2, QWEN3) and types is not None:
        return _windows_of_types(fields, types, window, layers)
    if architecture in (QWEN2, QWEN3):
        first = fields.integer("max_window_layers", POSITIONS_MAX, least=0)
        return tuple(NO_WINDOW if index < first else window for index in range(layers))
    if has_window and architecture == QWEN3_MOE and fields.values.get("max_window_layers"):
        # Releases of `transformers` differ in whether they look at it.
        raise fields.unserved("max_window_layers", f"is not served with {architecture}")
    if has_window and architecture == LLAMA:
        raise fields.unserved("sliding_window", f"is not served with {architecture}")
    if types is not None:
        raise fields.unserved("layer_types", f"are not served with {architecture}")
    return (window,) * layers


def _windows_of_types(
    fields: ConfigFields, types: object, window: int, layers: int
) -> tuple[int, ...]:
    if not isinstance(types, list) or len(types) != layers:
        raise fields.fault(
            "layer_types", f"must be a list with one type for each of {layers} layers"
        )
    if not all(name in (_FULL, _SLIDING) for name in types):
        raise fields.fault("layer_types", f"must be {_FULL} or {_SLIDING}")
    if _SLIDING in types and window == NO_WINDOW:
        raise fields.fault("layer_types", f"has {_SLIDING}, but there is no sliding_window in use")
    return tuple(window if name == _SLIDING else NO_WINDOW for name in types)


def _types_of_pattern(fields: ConfigFields, layers: int) -> list[str]:
    """Every so many layers one sees all. `transformers` saves the number with an underscore."""
    name = "sliding_window_pattern"
    pattern = fields.integer("_" + name, LAYERS_MAX, default=fields.integer(name, LAYERS_MAX))
    return [_SLIDING if (index + 1) % pattern else _FULL for index in range(layers)]


def _dtype(fields: ConfigFields) -> str:
    dtype = fields.values.get("dtype") or fields.values.get("torch_dtype") or "float32"
    if dtype not in DTYPES:
        raise fields.fault("dtype", f"{dtype!r:.40} is none of {', '.join(DTYPES)}")
    return str(dtype)
