"""What a model folder says about its architecture, read from `config.json` without torch.

The folder is in Hugging Face format and may be anybody's: every number is checked for type and
range, and what this engine cannot compute exactly as trained is refused by name instead of being
computed differently. Must not know weights, devices or settings of the engine.
"""

import json
import pathlib
from collections.abc import Mapping

import attrs

from .errors import ModelFolderError

CONFIG_FILE = "config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
# The largest config.json among popular models is below 100 kB (long lists of layer types).
CONFIG_BYTES_MAX = 4 * 2**20
# No published dense model comes near these; they keep products of two sizes far below 2**63.
VOCAB_SIZE_MAX = 2**22
WIDTH_MAX = 2**20
LAYERS_MAX = 2**12
POSITIONS_MAX = 2**27
NUMBER_MAX = 1e12  # bases of rotary embedding reach 1e7 or so
# Families whose layers are exactly Llama's. Mistral's differ only in an attention window.
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
DTYPES = ("bfloat16", "float16", "float32")


@attrs.frozen
class Llama3Scaling:
    """Llama 3's stretch of long rotary wavelengths; the names are those of the config file."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@attrs.frozen(kw_only=True)
class ModelConfig:
    """Architecture and token ids of one model. Sizes are numbers of values, lengths of tokens."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    norm_epsilon: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    max_model_len: int
    tied_embeddings: bool
    dtype: str  # of the weights as trained
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


@attrs.frozen
class ModelLimits:
    """The part of a model that bounds requests; any architecture has it."""

    vocab_size: int
    max_model_len: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def load_model_config(folder: str | pathlib.Path) -> ModelConfig:
    """Read and check `config.json` and `generation_config.json` in `folder`.

    Raises `ModelFolderError`, naming the file and the field, also for architectures and variants
    that this engine does not compute.
    """
    path = pathlib.Path(folder) / CONFIG_FILE
    fields = _Fields(str(path), _read_object(path))
    limits = _limits(pathlib.Path(folder), fields)
    _refuse_variants(fields)
    heads = fields.integer("num_attention_heads", WIDTH_MAX)
    hidden_size = fields.integer("hidden_size", WIDTH_MAX)
    kv_heads = fields.integer("num_key_value_heads", WIDTH_MAX, default=heads)
    head_size = fields.integer("head_dim", WIDTH_MAX, default=max(1, hidden_size // heads))
    if heads % kv_heads:
        raise fields.fault("num_attention_heads", f"{heads} is no multiple of {kv_heads} kv heads")
    if head_size % 2:
        raise fields.fault("head_dim", f"{head_size} is odd; rotary embedding needs pairs")
    rope = fields.mapping("rope_parameters") or fields.mapping("rope_scaling") or {}
    rope_fields = _Fields(str(path), rope)
    theta = fields.number("rope_theta", default=rope_fields.number("rope_theta", default=10_000.0))
    return ModelConfig(
        architecture=_architecture(fields),
        vocab_size=limits.vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", WIDTH_MAX),
        layers=fields.integer("num_hidden_layers", LAYERS_MAX),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        norm_epsilon=fields.number("rms_norm_eps", default=1e-6),
        rope_theta=theta,
        rope_scaling=_rope_scaling(rope_fields),
        max_model_len=limits.max_model_len,
        tied_embeddings=fields.flag("tie_word_embeddings"),
        dtype=_dtype(fields),
        bos_token_id=limits.bos_token_id,
        eos_token_ids=limits.eos_token_ids,
    )


def load_model_limits(folder: str | pathlib.Path) -> ModelLimits:
    """Vocabulary, length and end tokens alone, for whoever computes nothing with the model.

    Raises `ModelFolderError`; the architecture is not looked at.
    """
    path = pathlib.Path(folder) / CONFIG_FILE
    return _limits(pathlib.Path(folder), _Fields(str(path), _read_object(path)))


def _limits(folder: pathlib.Path, fields: "_Fields") -> ModelLimits:
    vocab_size = fields.integer("vocab_size", VOCAB_SIZE_MAX)
    generation_path = folder / GENERATION_CONFIG_FILE
    eos, bos = fields.token_ids("eos_token_id"), fields.token_ids("bos_token_id")
    if generation_path.exists():
        generation = _Fields(str(generation_path), _read_object(generation_path))
        eos = generation.token_ids("eos_token_id") or eos
        bos = generation.token_ids("bos_token_id") or bos
    for token_id in (*eos, *bos):
        if token_id >= vocab_size:
            raise fields.fault("vocab_size", f"{vocab_size} does not cover token id {token_id}")
    return ModelLimits(
        vocab_size=vocab_size,
        max_model_len=fields.integer("max_position_embeddings", POSITIONS_MAX, default=2048),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
    )


def _architecture(fields: "_Fields") -> str:
    names = fields.values.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in ARCHITECTURES:
        raise fields.fault("architectures", f"{names!r:.80} is none of {', '.join(ARCHITECTURES)}")
    return str(names[0])


def _refuse_variants(fields: "_Fields") -> None:
    for name in ("attention_bias", "mlp_bias"):
        if fields.flag(name):
            raise fields.fault(name, "is not supported: only linear layers without bias are")
    if fields.values.get("hidden_act", "silu") != "silu":
        raise fields.fault("hidden_act", "is not supported: only silu is")
    if fields.values.get("quantization_config") is not None:
        raise fields.fault("quantization_config", "is not supported: use unquantised weights")
    if fields.values.get("sliding_window") is not None:
        raise fields.fault("sliding_window", "is not supported: only full attention is")


def _rope_scaling(rope: "_Fields") -> Llama3Scaling | None:
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise rope.fault("rope_type", f"{kind!r:.40} is neither default nor llama3")
    scaling = Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.integer(
            "original_max_position_embeddings", POSITIONS_MAX
        ),
    )
    if scaling.low_freq_factor >= scaling.high_freq_factor:
        raise rope.fault("low_freq_factor", "must be below high_freq_factor")
    return scaling


def _dtype(fields: "_Fields") -> str:
    dtype = fields.values.get("dtype") or fields.values.get("torch_dtype") or "float32"
    if dtype not in DTYPES:
        raise fields.fault("dtype", f"{dtype!r:.40} is none of {', '.join(DTYPES)}")
    return str(dtype)


@attrs.frozen
class _Fields:
    """Typed look at the fields of one JSON object; `path` is for the errors."""

    path: str
    values: Mapping[str, object]

    def fault(self, name: str, reason: str) -> ModelFolderError:
        return ModelFolderError(self.path, f"{name} {reason}")

    def integer(self, name: str, largest: int, *, default: int | None = None) -> int:
        value = self.values.get(name)
        if value is None:
            value = default
        if type(value) is not int or not 1 <= value <= largest:
            raise self.fault(name, f"must be a whole number from 1 to {largest}, not {value!r:.40}")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        value = self.values.get(name)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fault(name, f"must be a number, not {value!r:.40}")
        if not 0 < value <= NUMBER_MAX:
            raise self.fault(name, f"must be a positive number, not {value!r:.40}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if value is not None and type(value) is not bool:
            raise self.fault(name, f"must be true or false, not {value!r:.40}")
        return bool(value)

    def mapping(self, name: str) -> Mapping[str, object] | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.fault(name, "must be an object")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(type(token_id) is not int or not 0 <= token_id < VOCAB_SIZE_MAX for token_id in ids):
            raise self.fault(name, f"must be token ids, not {value!r:.40}")
        return tuple(ids)


def _read_object(path: pathlib.Path) -> Mapping[str, object]:
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise ModelFolderError(str(path), f"cannot be read: {error.strerror}") from error
    if len(content) > CONFIG_BYTES_MAX:
        raise ModelFolderError(str(path), f"is larger than {CONFIG_BYTES_MAX} bytes")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(str(path), f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFolderError(str(path), "is not a JSON object")
    return value
