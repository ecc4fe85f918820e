"""Small random models for the tests of engine/model and engine/worker: folders, loaded, and driven.

Weights are torch's random numbers from a fixed seed. Nothing here is read from anywhere.
"""

import json
import pathlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from triolet.engine.model.attention import KvCache
from triolet.engine.model.decoder import Decoder, ForwardBatch
from triolet.engine.model.loader import DummyWeights
from triolet.engine.model.registry import load_model, plan_weights
from triolet.engine.model.weight_folder import SINGLE_FILE
from triolet.engine.model_config.config import load_model_config

CPU = torch.device("cpu")
BLOCK_TOKENS = 16
DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64"}
TINY: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_config(folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    """A folder with the config of the tiny model, changed; None is null."""
    values = {**TINY, **changes}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def safetensors_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """A weight file's content, written independently of the reader."""
    header: dict[str, Any] = {}
    values = b""
    for name, tensor in tensors.items():
        raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(values), len(values) + len(raw)],
        }
        values += raw
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + values


def write_model(folder: pathlib.Path, **changes: Any) -> pathlib.Path:
    """A whole folder: config, and the dummy weights of its model in one file."""
    planned = plan_weights(load_model_config(write_config(folder, **changes)))
    weights = DummyWeights(torch.float32, CPU)
    tensors = {name: weights.take(name, shape) for name, shape in planned.items()}
    (folder / SINGLE_FILE).write_bytes(safetensors_bytes(tensors))
    return folder


def load_dummy(
    folder: pathlib.Path, *, bitwise: bool = True, device: torch.device = CPU, **changes: Any
) -> Decoder:
    """A dummy model with the tiny config, changed."""
    config = load_model_config(write_config(folder, **changes))
    return load_model(
        folder,
        config,
        load_format="dummy",
        bitwise=bitwise,
        positions=config.max_model_len,
        device=device,
        progress=lambda fraction: None,
    )


class Driver:
    """Runs steps of a model over a cache of its own, with block tables that a test may choose."""

    def __init__(self, model: Decoder, tables: Sequence[Sequence[int]], blocks: int = 256) -> None:
        self.model = model
        self.cache = KvCache.allocate(
            model.config.layers,
            blocks,
            model.attention_shape,
            block_tokens=BLOCK_TOKENS,
            dtype=model.dtype,
            device=CPU,
        )
        width = max(map(len, tables))
        self.tables = torch.tensor([[*table, *[0] * (width - len(table))] for table in tables])

    def step(self, work: Sequence[tuple[int, int, Sequence[int]]]) -> Tensor:
        """Compute (row, first position, tokens) of each row at once; logits of all the tokens."""
        rows = [row for row, _, tokens in work for _ in tokens]
        positions = [first + i for _, first, tokens in work for i in range(len(tokens))]
        token_ids = [token for _, _, tokens in work for token in tokens]
        plan = self.model.plan_attention(self.tables, rows, positions, block_tokens=BLOCK_TOKENS)
        batch = ForwardBatch(
            token_ids_T=torch.tensor(token_ids),
            positions_T=torch.tensor(positions),
            attention=plan,
        )
        with torch.inference_mode():
            hidden = self.model.hidden(batch, self.cache)
            return self.model.logits(hidden, torch.arange(len(token_ids)))


def random_tokens(count: int, seed: int, vocab_size: int = 101) -> list[int]:
    """Token ids from a seed."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(vocab_size, (count,), generator=generator).tolist()
    return tokens
