"""The promise of bitwise mode: a row's logits are the same bits whatever is computed beside it."""

import pathlib
from typing import Any

import pytest
import torch
from torch import Tensor

from triolet.engine.model.attention import plan_attention
from triolet.engine.model.decoder import Decoder, ForwardBatch
from triolet.engine.model_config.config import GEMMA3, MISTRAL, QWEN3, QWEN3_MOE

from .tiny_models import Driver, load_dummy, random_tokens

# Bits are compared over whole prompts in many ways: seconds, together.
pytestmark = pytest.mark.slow
# Past two key tiles of 64, and no multiple of anything.
LENGTH = 150
TOKENS = random_tokens(LENGTH, seed=1)
TABLE = list(range(10))


ODD_SIZES = {
    "hidden_size": 60,
    "intermediate_size": 77,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "head_dim": 6,
}
# Each kind of layer, once; chunks of every variant are compared in `test_family_logits`.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, all kv heads": {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
    "mistral": {"architectures": [MISTRAL], "sliding_window": 70},
    "qwen3, odd sizes": {**ODD_SIZES, "architectures": [QWEN3], "attention_bias": True},
    "qwen3 moe, odd sizes": {
        **ODD_SIZES,
        "architectures": [QWEN3_MOE],
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 27,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "gemma3": {
        "architectures": [GEMMA3],
        "sliding_window": 33,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 20,
        "final_logit_softcapping": 3.0,
    },
}


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return load_dummy(tmp_path_factory.mktemp("model"), **MODELS[request.param])


@pytest.fixture(scope="module")
def expected(model: Decoder) -> Tensor:
    """The logits of the whole prompt, by one thread; no test changes them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return whole_prompt(model)
    finally:
        torch.set_num_threads(threads)


def whole_prompt(model: Decoder) -> Tensor:
    return Driver(model, [TABLE]).step([(0, 0, TOKENS)])


def test_a_chunked_prompt_gives_the_bits_of_a_whole_one(model: Decoder, expected: Tensor) -> None:
    for size in (1, 7, 16, 64):
        driver = Driver(model, [TABLE])
        parts = [
            driver.step([(0, begin, TOKENS[begin : begin + size])])
            for begin in range(0, LENGTH, size)
        ]
        assert torch.equal(torch.cat(parts), expected), f"chunks of {size}"


def test_neighbours_do_not_change_bits(model: Decoder, expected: Tensor) -> None:
    for others in (1, 2, 7):
        tables = [list(range(10 * row, 10 * row + 10)) for row in range(others + 1)]
        driver = Driver(model, tables)
        lengths = [1 + 37 * row % 160 for row in range(others)]
        work = [(row, 0, random_tokens(lengths[row], row + 2)) for row in range(others)]
        work.insert(others // 2, (others, 0, TOKENS))
        begin = sum(len(tokens) for _, _, tokens in work[: others // 2])
        logits = driver.step(work)
        assert torch.equal(logits[begin : begin + LENGTH], expected), f"{others} neighbours"


def test_decode_beside_prefill_gives_the_bits_of_a_prefill(
    model: Decoder, expected: Tensor
) -> None:
    driver = Driver(model, [TABLE, list(range(10, 20)), list(range(20, 30))])
    driver.step([(0, 0, TOKENS[:140])])
    for index in range(140, LENGTH):
        beside = (1 + index % 2, 15 * (index - 140), random_tokens(15, index))
        first, rest = (0, index, [TOKENS[index]]), beside
        logits = driver.step([rest, first] if index % 3 else [first, rest])
        row = 15 if index % 3 else 0
        assert torch.equal(logits[row], expected[index]), index


def test_the_block_table_does_not_change_bits(model: Decoder, expected: Tensor) -> None:
    scattered = Driver(model, [[251, 3, 77, 4, 200, 9, 8, 7, 100, 1]]).step([(0, 0, TOKENS)])
    assert torch.equal(scattered, expected)


def test_what_an_earlier_request_left_in_a_block_does_not_change_bits(
    model: Decoder, expected: Tensor
) -> None:
    driver = Driver(model, [TABLE])
    driver.step([(0, 0, random_tokens(160, seed=9))])
    assert torch.equal(driver.step([(0, 0, TOKENS)]), expected)


@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_does_not_change_bits(
    model: Decoder, expected: Tensor, threads: int
) -> None:
    torch.set_num_threads(threads)
    assert torch.equal(whole_prompt(model), expected)
    driver = Driver(model, [TABLE])
    # One token alone first: a single small product, where threads have nothing else to do.
    ends = [*range(1, 9), *range(25, LENGTH + 1, 25)]
    parts = [
        driver.step([(0, begin, TOKENS[begin:end])])
        for begin, end in zip([0, *ends], ends, strict=False)
    ]
    assert torch.equal(torch.cat(parts), expected)


def test_logits_are_neither_flat_nor_infinite(expected: Tensor) -> None:
    assert expected.dtype == torch.float32
    assert torch.isfinite(expected).all()
    assert (expected.std(-1) > 0.1).all()
    assert len(set(expected.argmax(-1).tolist())) > 10


def test_without_wanted_logits_none_are_computed(tmp_path: pathlib.Path) -> None:
    model = load_dummy(tmp_path)
    driver = Driver(model, [TABLE])
    assert driver.step([(0, 0, [5])]).shape == (1, 101)
    empty = torch.tensor([], dtype=torch.int64)
    assert model.attention_shape.kv_heads == 2
    plan = plan_attention(
        driver.tables, [0], [1], block_tokens=16, shape=model.attention_shape, device=model.device
    )
    batch = ForwardBatch(torch.tensor([5]), torch.tensor([1]), plan)
    assert model.logits(model.hidden(batch, driver.cache), empty).shape == (0, 101)


def test_logits_do_not_depend_on_which_others_are_wanted(tmp_path: pathlib.Path) -> None:
    model = load_dummy(tmp_path)
    driver = Driver(model, [TABLE])
    positions = torch.arange(20)
    plan = plan_attention(
        driver.tables, [0] * 20, list(range(20)), block_tokens=16, shape=model.attention_shape,
        device=model.device,
    )  # fmt: skip
    batch = ForwardBatch(positions, positions, plan)
    with torch.inference_mode():
        hidden = model.hidden(batch, driver.cache)
        together = model.logits(hidden, positions)
        for first, last in ((0, 1), (3, 20), (17, 19)):
            assert torch.equal(model.logits(hidden, positions[first:last]), together[first:last])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plain_mode_is_near_bitwise_mode(tmp_path: pathlib.Path, dtype: str) -> None:
    exact = whole_prompt(load_dummy(tmp_path))
    model = load_dummy(tmp_path, bitwise=False, dtype=dtype)
    assert model.dtype == {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    error = (whole_prompt(model) - exact).abs().max() / exact.abs().max()
    assert error < {"float32": 1e-5, "bfloat16": 0.05}[dtype]
