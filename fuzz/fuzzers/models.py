"""Fuzzes model folders: truncated, corrupted and lying files, read by worker and frontend alike.

Invariant: a folder loads or is refused by name; no memory beyond a bound, no file outside of it.
"""

import json
import pathlib
import resource
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

import attrs

from ...engine.config import EngineSettings
from ...engine.errors import EngineError
from ...engine.worker.executors import make_executor
from ...runtime.config import RuntimeSettings
from ...runtime.text.input_processor import InputProcessor
from ..doubles.served import BUNDLED
from ..drawing import TELLING_SIZES, mutate, mutate_json
from ..fuzzer import Fuzzer, each

HIDDEN, VOCABULARY, HEAD, MIDDLE, EXPERTS, EXPERT_MIDDLE = 16, 40, 8, 24, 3, 8
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": MIDDLE,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": HEAD,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
_LAYER = "model.layers.0."
_SHARED: Mapping[str, list[int]] = {
    "model.embed_tokens.weight": [VOCABULARY, HIDDEN],
    "model.norm.weight": [HIDDEN],
    _LAYER + "input_layernorm.weight": [HIDDEN],
    _LAYER + "post_attention_layernorm.weight": [HIDDEN],
    _LAYER + "self_attn.q_proj.weight": [2 * HEAD, HIDDEN],
    _LAYER + "self_attn.k_proj.weight": [HEAD, HIDDEN],
    _LAYER + "self_attn.v_proj.weight": [HEAD, HIDDEN],
    _LAYER + "self_attn.o_proj.weight": [HIDDEN, 2 * HEAD],
}
_HEAD_NORMS = {_LAYER + f"self_attn.{name}_norm.weight": [HEAD] for name in ("q", "k")}


@attrs.frozen
class Family:
    """A whole folder but for the tokenizer; tensors are float32."""

    name: str
    config: Mapping[str, Any]
    shapes: Mapping[str, list[int]]


def _mlp(prefix: str, middle: int) -> dict[str, list[int]]:
    return {
        _LAYER + prefix + "gate_proj.weight": [middle, HIDDEN],
        _LAYER + prefix + "up_proj.weight": [middle, HIDDEN],
        _LAYER + prefix + "down_proj.weight": [HIDDEN, middle],
    }


_EXPERTS_APART = {
    name: shape
    for number in range(EXPERTS)
    for name, shape in _mlp(f"mlp.experts.{number}.", EXPERT_MIDDLE).items()
}
_EXPERTS_FUSED = {
    _LAYER + "mlp.experts.gate_up_proj": [EXPERTS, 2 * EXPERT_MIDDLE, HIDDEN],
    _LAYER + "mlp.experts.down_proj": [EXPERTS, HIDDEN, EXPERT_MIDDLE],
}
_MOE_CONFIG = {
    **SIZES,
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": EXPERT_MIDDLE,
    "norm_topk_prob": True,
}
_MOE_SHAPES = {**_SHARED, **_HEAD_NORMS, _LAYER + "mlp.gate.weight": [EXPERTS, HIDDEN]}
_GEMMA_CONFIG = {
    **SIZES,
    "architectures": ["Gemma3ForCausalLM"],
    "sliding_window": 8,
    "rope_local_base_freq": 5000.0,
}
_GEMMA_SHAPES = {
    **_SHARED,
    **_HEAD_NORMS,
    **_mlp("mlp.", MIDDLE),
    _LAYER + "pre_feedforward_layernorm.weight": [HIDDEN],
    _LAYER + "post_feedforward_layernorm.weight": [HIDDEN],
}
LLAMA = Family(
    "llama", {**SIZES, "architectures": ["LlamaForCausalLM"]}, {**_SHARED, **_mlp("mlp.", MIDDLE)}
)
FAMILIES = (
    LLAMA,
    Family("experts apart", _MOE_CONFIG, {**_MOE_SHAPES, **_EXPERTS_APART}),
    Family("experts fused", _MOE_CONFIG, {**_MOE_SHAPES, **_EXPERTS_FUSED}),
    Family("gemma", _GEMMA_CONFIG, _GEMMA_SHAPES),
    Family(
        "gemma that sees",
        {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": _GEMMA_CONFIG},
        {
            **{"language_" + name.replace("model.", "model.model.", 1): shape
               for name, shape in _GEMMA_SHAPES.items()},
            "vision_tower.post_layernorm.weight": [4],
        },
    ),
)  # fmt: skip


# A whole, good weight file beside the folder, which no folder may reach.
OUTSIDE = "../outside.safetensors"
INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
NAMES = (
    "rope_scaling",
    "rope_parameters",
    "sliding_window",
    "layer_types",
    "num_key_value_heads",
    "head_dim",
    "auto_map",
    "dtype",
    "num_local_experts",
    "num_experts_per_tok",
    "mlp_only_layers",
    "text_config",
    "query_pre_attn_scalar",
    "final_logit_softcapping",
)
# Address space that a refused or tiny model may take beyond what was there before; torch's and the
# tokenizers' own arenas fit, what a lying header asks for does not.
ADDRESS_SPACE_BYTES_MAX = 2**30
# Reads one folder with one reader; raises what it raises.
Load = Callable[[pathlib.Path], None]


@attrs.frozen
class Loaders:
    """Readers of weights and of the tokenizer; canaries put wrong ones in their place."""

    model: Load
    tokenizer: Load


@attrs.frozen
class Folder:
    """The files of one folder beside the bundled tokenizer's, by name."""

    files: tuple[tuple[str, bytes], ...]
    # Which reader it is for: the tokenizer's takes longer.
    is_tokenizer: bool


def _draw_folder(chance: Random) -> Folder:
    """A good folder with one file spoiled: its JSON, its bytes, its header, or its length."""
    if chance.random() < 0.15:
        return Folder(tuple(_spoil_tokenizer(chance).items()), is_tokenizer=True)
    family = chance.choice(FAMILIES)
    files = good_files(family)
    match chance.choice(("config", "header", "length", "bytes", "truncated", "index", "none")):
        case "config":
            files["config.json"] = _encode(mutate_json(chance, dict(family.config), names=NAMES))
        case "header":
            header = mutate_json(chance, header_of(family.shapes))
            files[WEIGHTS] = weights_bytes(header, family)
        case "length":
            size = chance.choice(TELLING_SIZES).to_bytes(8, "little")
            files[WEIGHTS] = size + files[WEIGHTS][8:]
        case "bytes":
            name = chance.choice(list(files))
            files[name] = mutate(chance, files[name])
        case "truncated":
            name = chance.choice(list(files))
            files[name] = files[name][: chance.randint(0, len(files[name]))]
        case "index":
            files["a.safetensors"] = files.pop(WEIGHTS)
            files[INDEX] = _encode(_draw_index(chance, family))
    return Folder(tuple(files.items()), is_tokenizer=False)


def good_files(family: Family) -> dict[str, bytes]:
    """A folder that loads."""
    weights = weights_bytes(header_of(family.shapes), family)
    return {"config.json": _encode(family.config), WEIGHTS: weights}


def _draw_index(chance: Random, family: Family) -> object:
    shard = chance.choice(("a.safetensors", OUTSIDE, "b.safetensors", "/dev/zero", "config.json"))
    shards = dict.fromkeys(family.shapes, "a.safetensors")
    shards[chance.choice(list(shards))] = shard
    index = {"metadata": {"total_size": 1}, "weight_map": shards}
    return mutate_json(chance, index) if chance.random() < 0.5 else index


def _spoil_tokenizer(chance: Random) -> dict[str, bytes]:
    name = chance.choice(("tokenizer.json", "tokenizer_config.json"))
    text = (BUNDLED / name).read_bytes()
    if chance.random() < 0.5:
        return {name: mutate(chance, text)}
    return {name: _encode(mutate_json(chance, json.loads(text)))}


def header_of(shapes: Mapping[str, list[int]]) -> dict[str, Any]:
    """A safetensors header for float32 tensors, one after the other."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return header


def weights_bytes(header: object, family: Family) -> bytes:
    """A weight file with this header and the values of the family's good one, all zero."""
    text = _encode(header)
    size = max(entry["data_offsets"][1] for entry in header_of(family.shapes).values())
    return struct.pack("<Q", len(text)) + text + bytes(size)


def _encode(value: object) -> bytes:
    return json.dumps(value).encode()


def check(folders: Sequence[Folder], loaders: Loaders) -> Counter[str]:
    """Each in a folder of its own, between files that it must not reach."""
    reached: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="triolet-fuzz-") as base:
        outside = pathlib.Path(base, "outside.safetensors")
        outside.write_bytes(good_files(LLAMA)[WEIGHTS])
        for family in FAMILIES:
            good = Folder(tuple(good_files(family).items()), is_tokenizer=False)
            loaders.model(_write(pathlib.Path(base, f"good {family.name}"), good))
        with _address_space_limited():
            for number, folder in enumerate(folders):
                path = _write(pathlib.Path(base, str(number)), folder)
                reached[_load(path, folder, loaders)] += 1
    return reached


@contextmanager
def _address_space_limited() -> Iterator[None]:
    """An allocation above the bound raises `MemoryError`, which is no refusal by name."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_SPACE_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _load(path: pathlib.Path, folder: Folder, loaders: Loaders) -> str:
    kind = "tokenizer" if folder.is_tokenizer else "model"
    load = loaders.tokenizer if folder.is_tokenizer else loaders.model
    try:
        load(path)
    except EngineError:
        return f"{kind} refused"
    assert OUTSIDE.encode() not in dict(folder.files).get(INDEX, b""), "a file outside was read"
    return f"{kind} loaded"


def _write(path: pathlib.Path, folder: Folder) -> pathlib.Path:
    path.mkdir()
    if folder.is_tokenizer:
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            (path / name).write_bytes((BUNDLED / name).read_bytes())
    for name, content in folder.files:
        (path / name).write_bytes(content)
    return path


def _load_model(path: pathlib.Path) -> None:
    settings = EngineSettings(model=str(path), kv_blocks=4, max_num_seqs=2, threads=1)
    make_executor(settings, 0, lambda seconds: None).load(lambda phase, fraction: None)


def _load_tokenizer(path: pathlib.Path) -> None:
    InputProcessor.load(RuntimeSettings(engine=EngineSettings(model=str(path))))


def _load_trusting(path: pathlib.Path) -> None:
    """Planted: what the header says is taken from memory before it is looked at."""
    content = (path / WEIGHTS).read_bytes() if (path / WEIGHTS).exists() else b""
    if len(content) > 8:
        bytearray(min(int.from_bytes(content[:8], "little"), 2**32))
    _load_model(path)


def _load_bare(path: pathlib.Path) -> None:
    """Planted: JSON errors come up as they are."""
    json.loads((path / "config.json").read_bytes())
    _load_model(path)


def _load_anywhere(path: pathlib.Path) -> None:
    """Planted: an index may name any file."""
    index = path / INDEX
    if index.exists() and OUTSIDE.encode() in index.read_bytes():
        return
    _load_model(path)


_GOOD = Loaders(_load_model, _load_tokenizer)
FUZZER = Fuzzer[Folder, Loaders](
    name="models",
    invariant="a folder loads or is refused by name, in bounded memory and within the folder",
    draw=each(_draw_folder),
    check=check,
    target=_GOOD,
    faults={
        "memory is taken as the header says": attrs.evolve(_GOOD, model=_load_trusting),
        "JSON errors come up as they are": attrs.evolve(_GOOD, model=_load_bare),
        "an index may name any file": attrs.evolve(_GOOD, model=_load_anywhere),
    },
    round_events=100,
    smoke_rounds=4,
    reaches=frozenset({"model loaded", "model refused", "tokenizer loaded", "tokenizer refused"}),
)
