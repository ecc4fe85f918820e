"""The bundled model as one GGUF file, so that llama.cpp can serve it beside us.

    python -m triolet.tools.bundled_model.gguf OUT.gguf

The format (version 3) is a header, key-values, tensor infos, and values of 32 bytes' alignment. Its
attention is that of llama.cpp, which rotates neighbours where ours rotates halves: the rows of
queries and keys are in another order. Values are float32, so that nothing is rounded.
"""

import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ...engine.model.bundled import bundled_model_folder

MAGIC, VERSION, ALIGNMENT, FLOAT32 = b"GGUF", 3, 32, 0
# Types of values.
UINT32, INT32, FLOAT, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
# Types of tokens.
NORMAL, CONTROL = 1, 3
_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_of(config: Mapping[str, Any], tokenizer: Mapping[str, Any], file: Path) -> bytes:
    """A whole file."""
    tensors = {}
    for name, tensor in load_file(file).items():
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        for part, count in heads.items():
            if f".{part}." in name:
                tensor = interleaved(tensor, config[count])
        tensors[gguf_name(name)] = tensor.to(torch.float32).contiguous()
    values = [*_model_values(config), *_tokenizer_values(config, tokenizer)]
    head = MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(values)) + b"".join(values)
    data = b""
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", FLOAT32, len(data))
        data += _padded(tensor.numpy().tobytes())
    return _padded(head) + data


def gguf_name(name: str) -> str:
    """Name in GGUF of a tensor of Hugging Face's Llama."""
    if name in _NAMES:
        return _NAMES[name]
    _, _, layer, *parts, kind = name.split(".")
    return f"blk.{layer}.{_LAYER_NAMES['.'.join(parts)]}.{kind}"


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys: the two halves of each head in turn."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _model_values(config: Mapping[str, Any]) -> list[bytes]:
    numbers = {
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "rope.dimension_count": "head_dim",
        "vocab_size": "vocab_size",
    }
    floats = {"attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.freq_base": "rope_theta"}
    return [
        _value("general.architecture", STRING, _string("llama")),
        *(_value(f"llama.{n}", UINT32, struct.pack("<I", config[k])) for n, k in numbers.items()),
        *(_value(f"llama.{n}", FLOAT, struct.pack("<f", config[k])) for n, k in floats.items()),
    ]


def _tokenizer_values(config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> list[bytes]:
    model = tokenizer["model"]
    special = {each["id"]: each["content"] for each in tokenizer["added_tokens"]}
    texts = {number: text for text, number in model["vocab"].items()} | special
    count = config["vocab_size"]
    tokens = [_string(texts.get(number, f"[unused {number}]")) for number in range(count)]
    kinds = [struct.pack("<i", CONTROL if n in special else NORMAL) for n in range(count)]
    merges = [
        _string(each if isinstance(each, str) else " ".join(each)) for each in model["merges"]
    ]
    name = "tokenizer.ggml"
    return [
        _value(f"{name}.model", STRING, _string("gpt2")),
        _value(f"{name}.pre", STRING, _string("gpt-2")),
        _value(f"{name}.tokens", ARRAY, _array(STRING, tokens)),
        _value(f"{name}.token_type", ARRAY, _array(INT32, kinds)),
        _value(f"{name}.merges", ARRAY, _array(STRING, merges)),
        _value(f"{name}.bos_token_id", UINT32, struct.pack("<I", config["bos_token_id"])),
        _value(f"{name}.eos_token_id", UINT32, struct.pack("<I", config["eos_token_id"])),
        _value(f"{name}.add_bos_token", BOOL, b"\1"),
    ]


def _value(name: str, kind: int, data: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + data


def _array(kind: int, values: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(values)) + b"".join(values)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def main(out: str) -> None:
    """Write it."""
    folder = Path(bundled_model_folder())
    config, tokenizer = (
        json.loads((folder / name).read_text()) for name in ("config.json", "tokenizer.json")
    )
    Path(out).write_bytes(gguf_of(config, tokenizer, folder / "model.safetensors"))


if __name__ == "__main__":
    main(sys.argv[1])
