"""The bundled model's files, in Hugging Face format: written by training, read by evaluation.

The weight format is safetensors: eight bytes of header length, a JSON header, raw little-endian
values. It is written here so that making the model needs no package beyond the engine's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .generator import ASSISTANT, BOS, EOS, SPECIAL_TOKENS, SYSTEM, USER
from .training_model import ModelShape

# The longest window of training (see `training.Plan`).
POSITIONS_MAX = 1024
_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

# Tools and calls are written as Hermes and Qwen models have them (`runtime.text.tool_calls` reads
# them). The model has never seen any: what it is trained on is the text without tools.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    f"{{% if tools %}}{SYSTEM}You may call functions:"
    "{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}"
    '{{ \'\\n<tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>\' }}{% endif %}'
    "{% for message in messages %}"
    "{% if message['role'] == 'system' or message['role'] == 'developer' %}"
    f"{SYSTEM}{{{{ message['content'] | trim }}}}"
    "{% elif message['role'] == 'assistant' %}"
    f"{ASSISTANT}{{{{ message['content'] | trim }}}}"
    "{% for call in message['tool_calls'] %}"
    "{{ '\\n<tool_call>\\n{\"name\": ' }}{{ call['function']['name'] | tojson }}"
    "{{ ', \"arguments\": ' }}{{ call['function']['arguments'] | tojson }}"
    "{{ '}\\n</tool_call>' }}{% endfor %}"
    "{{ eos_token }}"
    "{% elif message['role'] == 'tool' %}"
    f"{USER}<tool_response>{{{{ '\\n' }}}}{{{{ message['content'] | trim }}}}"
    "{{ '\\n' }}</tool_response>"
    "{% else %}"
    f"{USER}{{{{ message['content'] | trim }}}}"
    "{% endif %}{% endfor %}"
    f"{{% if add_generation_prompt %}}{ASSISTANT}{{% endif %}}"
)


def write_safetensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write `tensors` (bfloat16 or float32) under their names, replacing `path` in one move."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # The format asks for values to begin at a multiple of eight.
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            file.write(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    unfinished.replace(path)


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file that `write_safetensors` wrote."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    metadata: dict[str, str] = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        raw = bytearray(content[start + first : start + end])
        values = torch.frombuffer(raw, dtype=torch.uint8)
        tensors[name] = values.view(_DTYPES[entry["dtype"]]).view(entry["shape"])
    return tensors, metadata


def write_settings(folder: Path, shape: ModelShape) -> None:
    """Write the three JSON files beside weights and tokenizer: model, tokenizer, generation."""
    bos_id, eos_id = SPECIAL_TOKENS.index(BOS), SPECIAL_TOKENS.index(EOS)
    model = {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "head_dim": shape.head_channels,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": POSITIONS_MAX,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.query_heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.key_value_heads,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "additional_special_tokens": [USER, ASSISTANT, SYSTEM],
        "clean_up_tokenization_spaces": False,
        "model_max_length": POSITIONS_MAX,
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
    }
    contents = {
        "config.json": model,
        "tokenizer_config.json": tokenizer,
        "generation_config.json": generation,
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def write_weights(folder: Path, weights: dict[str, Tensor]) -> None:
    """Write `model.safetensors` in bfloat16, the precision it is served in."""
    rounded = {name: tensor.detach().to(torch.bfloat16) for name, tensor in weights.items()}
    write_safetensors(folder / "model.safetensors", rounded, {"format": "pt"})


def read_shape(folder: Path) -> ModelShape:
    """The architecture that `config.json` in `folder` describes."""
    config = json.loads((folder / "config.json").read_text())
    return ModelShape(
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        query_heads=config["num_attention_heads"],
        key_value_heads=config["num_key_value_heads"],
        head_channels=config["head_dim"],
        intermediate=config["intermediate_size"],
        rope_theta=config["rope_theta"],
        norm_epsilon=config["rms_norm_eps"],
    )
