"""Each tensor of a pass is made where the model is: on a device without memory or values.

Operators run on torch's meta device, and one whose operands are on two devices is refused, as CUDA
would refuse it; so this runs without a GPU. Whether kernels exist and are right it cannot tell.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from triolet.engine.model.attention import KvCache
from triolet.engine.model.decoder import ForwardBatch
from triolet.engine.model.layer_weights import load_decoder
from triolet.engine.model.loader import DummyWeights
from triolet.engine.model.registry import LAYER_LOADERS
from triolet.engine.model_config.config import GEMMA3, LLAMA, QWEN2, QWEN3, load_model_config

from .tiny_models import BLOCK_TOKENS, write_config

ELSEWHERE = torch.device("meta")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": [LLAMA], "attention_bias": True},
    "qwen2": {"architectures": [QWEN2], "sliding_window": 20, "use_sliding_window": True},
    "qwen3": {"architectures": [QWEN3]},
    "gemma3": {"architectures": [GEMMA3], "sliding_window": 20, "final_logit_softcapping": 9.0},
}


class OneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses what a GPU would: an operator over tensors here and there, copies excepted."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        devices = {x.device for x in tensors if x.dim()}
        assert len(devices) <= 1 or func in COPIES, f"{func} over {devices}"
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def one_device() -> Iterator[None]:
    """For everything that the test computes."""
    with OneDevice():  # type: ignore[no-untyped-call]
        yield


def test_two_devices_are_seen() -> None:
    here, there = torch.zeros(4, dtype=torch.int64), torch.zeros((4, 4), device=ELSEWHERE)
    with pytest.raises(AssertionError, match="index_select"):
        there.index_select(0, here)


@pytest.mark.parametrize("bitwise", [False, True])
@pytest.mark.parametrize("name", list(MODELS))
def test_a_pass_stays_on_its_device(tmp_path: pathlib.Path, name: str, bitwise: bool) -> None:
    config = load_model_config(write_config(tmp_path, **MODELS[name]))
    dtype = torch.float32 if bitwise else torch.bfloat16
    model = load_decoder(
        config,
        DummyWeights(dtype, ELSEWHERE),
        LAYER_LOADERS[config.architecture],
        positions=64,
        bitwise=bitwise,
        dtype=dtype,
        device=ELSEWHERE,
    )
    cache = KvCache.allocate(
        config.layers, 16, model.attention_shape,
        block_tokens=BLOCK_TOKENS, dtype=dtype, device=ELSEWHERE,
    )  # fmt: skip
    # A whole prompt, a chunk after others, and two tokens that are their sequences' only ones.
    rows = [0] * 20 + [1] * 7 + [2, 3]
    positions = [*range(20), *range(30, 37), 5, 40]
    tables = torch.zeros((4, 4), dtype=torch.int64)
    plan = model.plan_attention(tables, rows, positions, block_tokens=BLOCK_TOKENS)
    batch = ForwardBatch(
        token_ids_T=torch.zeros(len(rows), dtype=torch.int64, device=ELSEWHERE),
        positions_T=torch.tensor(positions, device=ELSEWHERE),
        attention=plan,
    )
    hidden = model.hidden(batch, cache)
    logits = model.logits(hidden, torch.tensor([19, 26, 27, 28], device=ELSEWHERE))
    assert (logits.device, logits.dtype) == (ELSEWHERE, torch.float32)
    assert logits.shape == (4, config.vocab_size)
