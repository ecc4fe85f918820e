"""Forward passes: near the reference in every family, the same bits in any company; experts."""

import pathlib
import resource
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import attrs
import numpy
import pytest
import torch
import transformers

from triolet.engine.kernels.library import machine_isas
from triolet.engine.kernels.model import NativeModel
from triolet.engine.kernels.weights import DummyTensors, Stored
from triolet.engine.model_config.config import QWEN3_MOE, load_model_config

from ..model.reference import PROMPT_TOKENS, VOCABULARY, save_reference
from ..model.test_family_logits import CASES
from ..model.tiny_models import random_tokens, write_config
from .small_models import BLOCKS, Driver, load_native, needs_kernels, pack_native

pytestmark = needs_kernels
every_isa = pytest.mark.parametrize("isa", machine_isas())
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
# But mixtures that choose: a near tie that falls the other way is no rounding error.
CLEAR_CASES = [
    name
    for name, (_, changes) in CASES.items()
    if changes.get("num_experts") == changes.get("num_experts_per_tok")
]
# What layers are made of, for what is not compared with a reference.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    # Few rows of a product of so many inputs are computed stretch by stretch.
    "a wide MLP": {"intermediate_size": 600},
    "experts": {"architectures": ["Qwen3MoeForCausalLM"], **EXPERTS},
    "norms at the end": {"architectures": ["Gemma3ForCausalLM"], "sliding_window": 40},
}
every_kind = pytest.mark.parametrize("kind", list(KINDS))
TOKENS = random_tokens(PROMPT_TOKENS, seed=3, vocab_size=VOCABULARY)


@pytest.mark.slow
@pytest.mark.parametrize("case", CLEAR_CASES)
def test_logits_are_nearer_to_the_reference_than_its_own_bf16(
    tmp_path: pathlib.Path, case: str
) -> None:
    architecture, changes = CASES[case]
    reference = save_reference(tmp_path, getattr(transformers, architecture), **changes)
    with torch.no_grad():
        expected = reference(torch.tensor([TOKENS])).logits[0].numpy()
        bf16 = reference.bfloat16()(torch.tensor([TOKENS])).logits[0].float().numpy()
    for isa in machine_isas():
        logits = Driver(load_native(tmp_path, isa=isa), [list(range(13))]).step([(0, 0, TOKENS)])
        error, allowed = numpy.abs(logits - expected), numpy.abs(bf16 - expected)
        assert error.mean() < allowed.mean(), isa
        assert error.max() < allowed.max(), isa


@every_isa
@every_kind
def test_a_row_has_the_same_bits_in_any_company(
    tmp_path: pathlib.Path, isa: str, kind: str
) -> None:
    folder = write_config(
        tmp_path, head_dim=24, hidden_size=96, num_attention_heads=6, num_key_value_heads=2,
        **KINDS[kind],
    )  # fmt: skip
    model = load_native(folder, isa=isa, dummy=True)
    tokens = random_tokens(150, seed=2)
    whole = Driver(model, [list(range(13))]).step([(0, 0, tokens)])

    chunks = Driver(model, [list(range(30, 43))])
    rows = [1, 2, 3, 4, 5, 6, 7, 11, 12, 32, 1, 66]  # tiles of every height, alone and not
    parts = [(sum(rows[:place]), count) for place, count in enumerate(rows)]
    chunked = [chunks.step([(0, begin, tokens[begin : begin + n])]) for begin, n in parts]
    assert numpy.array_equal(numpy.concatenate(chunked), whole)

    # One token at a time, beside 31 others that are elsewhere, each in its own company.
    tables = [list(range(row * 4, row * 4 + 4)) for row in range(32)]
    crowd = Driver(model, tables)
    others = [(row, 0, random_tokens(1 + row, seed=row)) for row in range(1, 32)]
    crowd.step([*others, (0, 0, tokens[:7])])
    for position in range(7, 40):
        work = [(row, 1 + row + position - 7, [position]) for row in range(1, 25)]
        logits = crowd.step([*work[:11], (0, position, [tokens[position]]), *work[11:]])
        assert numpy.array_equal(logits[11], whole[position]), position


@every_isa
@every_kind
def test_a_row_has_the_same_bits_whoever_else_wants_logits(
    tmp_path: pathlib.Path, isa: str, kind: str
) -> None:
    """Of the last layer only what is wanted is computed: any tokens, in any order, one twice."""
    folder = write_config(tmp_path, head_dim=24, hidden_size=96, **KINDS[kind])
    model = load_native(folder, isa=isa, threads=3, dummy=True)
    driver = Driver(model, [list(range(9)), list(range(9, 18)), list(range(18, 27))])
    work = [
        (0, 0, random_tokens(70, seed=2)),
        (1, 0, [7]),
        (2, 0, random_tokens(90, seed=3)),
    ]
    whole = driver.step(work)
    then = [(row, len(tokens), [9, 5]) for row, _, tokens in work]
    after = driver.step(then)
    for wanted in ([], [160], [70], [69, 70, 160], [3, 150, 4, 5, 71, 4], [*range(20, 140)]):
        driver.forget()
        assert numpy.array_equal(driver.step(work, wanted=wanted), whole[wanted])
        assert numpy.array_equal(driver.step(then), after)


@every_isa
@every_kind
def test_threads_do_not_change_a_bit(tmp_path: pathlib.Path, isa: str, kind: str) -> None:
    folder = write_config(tmp_path, **KINDS[kind])
    tokens = random_tokens(100, seed=2)
    one, two, three = (
        Driver(load_native(folder, isa=isa, threads=threads, dummy=True), [list(range(9))])
        for threads in (1, 2, 3)
    )
    for begin, end in ((0, 90), (90, 91), (91, 100)):
        work = [(0, begin, tokens[begin:end])]
        expected = one.step(work)
        assert numpy.array_equal(two.step(work), expected)
        assert numpy.array_equal(three.step(work), expected)


def test_a_prefix_that_another_row_computed_is_as_good_as_ones_own(tmp_path: pathlib.Path) -> None:
    model = load_native(write_config(tmp_path), dummy=True)
    tokens = random_tokens(60, seed=2)
    driver = Driver(model, [[5, 9, 7, 3], [5, 9, 11, 12]])
    whole = driver.step([(0, 0, tokens)])
    assert numpy.array_equal(driver.step([(1, 32, tokens[32:])]), whole[32:])


def test_blocks_of_a_request_before_do_not_leak(tmp_path: pathlib.Path) -> None:
    """Not even what is no number: the first token of a pair clears the second one's place."""
    model = load_native(write_config(tmp_path), dummy=True)
    tokens = random_tokens(33, seed=2)
    expected = Driver(model, [[0, 1, 2]]).step([(0, 0, tokens)])
    cache = model._cache
    cache.view(numpy.uint16)[:] = 0x7FC0  # NaN
    again = Driver(model, [[7, 8, 9]])
    assert numpy.array_equal(again.step([(0, 0, tokens[:32])]), expected[:32])
    assert numpy.array_equal(again.step([(0, 32, tokens[32:])]), expected[32:])


def test_logits_may_be_asked_for_later(tmp_path: pathlib.Path) -> None:
    from triolet.engine.kernels.model import ForwardStep, int32s

    model = load_native(write_config(tmp_path), dummy=True)
    driver = Driver(model, [[0, 1]])
    expected = driver.step([(0, 0, [3, 4, 5, 6])])
    step = ForwardStep(
        int32s([3, 4, 5, 6]), int32s([0]), int32s([0]), int32s([4]), driver.tables, int32s([]),
        keeps_all=True,
    )  # fmt: skip
    assert len(model.forward(step)) == 0
    found = model.logits(step, int32s([2, 0]))[:, : model.config.vocab_size]
    assert numpy.array_equal(found, expected[[2, 0]])


def test_the_cache_has_all_its_pages_when_it_is_asked_for(tmp_path: pathlib.Path) -> None:
    model = load_native(write_config(tmp_path, num_hidden_layers=8), dummy=True, threads=2)
    size = BLOCKS * 8 * 2 * 2 * 16 * 32 * 2
    told: list[float] = []
    before = resident_bytes()
    model.populate_cache(told.append)
    assert told == [1.0]
    assert len(model._cache) == size
    assert not model._cache.any()
    assert resident_bytes() - before > size / 2  # which the kernel counts in batches


def resident_bytes() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


TOKENS_OF_EXPERTS = random_tokens(40, seed=4)
NAN = float("nan")
NONE_CHANGED: Mapping[str, float] = MappingProxyType({})


@attrs.frozen(eq=False)
class ChangedTensors:
    """Dummies, but for tensors whose names end so: they have one value everywhere."""

    values: Mapping[str, float]

    def take(self, name: str, shape: tuple[int, ...]) -> Stored:
        """The tensor."""
        for end, value in self.values.items():
            if name.endswith(end):
                return Stored(numpy.full(shape, value, numpy.float32), "F32")
        return DummyTensors().take(name, shape)


def load(
    folder: pathlib.Path, *, experts: int, chosen: int, isa: str = "", normalized: bool = True,
    values: Mapping[str, float] = NONE_CHANGED,
) -> NativeModel:  # fmt: skip
    write_config(
        folder, architectures=[QWEN3_MOE], num_experts=experts, num_experts_per_tok=chosen,
        moe_intermediate_size=40, norm_topk_prob=normalized,
    )  # fmt: skip
    return pack_native(load_model_config(folder), ChangedTensors(values), isa=isa)


def logits(model: NativeModel) -> numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float32]]:
    return Driver(model, [[0, 1, 2]]).step([(0, 0, TOKENS_OF_EXPERTS)])


@every_isa
def test_of_equal_scores_the_first_experts_win_and_no_other_is_read(
    tmp_path: pathlib.Path, isa: str
) -> None:
    equal = {"mlp.gate.weight": 0.0}
    two = load(tmp_path, experts=2, chosen=2, isa=isa, values=equal)
    spoilt = {f"experts.{number}.up_proj.weight": NAN for number in (2, 3, 4)}
    five = load(tmp_path, experts=5, chosen=2, isa=isa, values={**equal, **spoilt})
    assert numpy.array_equal(logits(five), logits(two))
    assert not numpy.array_equal(logits(load(tmp_path, experts=2, chosen=1, isa=isa)), logits(two))


def test_shares_that_are_not_normed_are_those_of_all_experts(tmp_path: pathlib.Path) -> None:
    """Of two experts that score alike, the one that is chosen has half a say."""
    equal = {"mlp.gate.weight": 0.0}
    alone = load(tmp_path, experts=1, chosen=1, normalized=False, values=equal)
    half = load(tmp_path, experts=2, chosen=1, normalized=False, values=equal)
    doubled = load(tmp_path, experts=2, chosen=1, normalized=True, values=equal)
    assert numpy.array_equal(logits(doubled), logits(alone))
    assert not numpy.array_equal(logits(half), logits(alone))


@every_isa
def test_scores_that_are_no_numbers_spoil_their_own_row_alone(
    tmp_path: pathlib.Path, isa: str
) -> None:
    model = load(tmp_path, experts=6, chosen=3, isa=isa)
    expected = logits(model)
    spoilt = load(tmp_path, experts=6, chosen=3, isa=isa)
    # Token 9 of the packed head, in which embeddings are looked up: its first channel.
    weights = spoilt._kept[0]
    assert isinstance(weights, numpy.ndarray)
    head = spoilt._weights.head - weights.__array_interface__["data"][0]
    weights[head:].view(numpy.uint16)[2 * 9] = 0x7FC0
    assert 9 not in TOKENS_OF_EXPERTS
    driver = Driver(spoilt, [[0, 1, 2], [3]])
    found = driver.step([(1, 0, [9, 10]), (0, 0, TOKENS_OF_EXPERTS)])
    assert numpy.isnan(found[0]).all()
    kept = [token for token in range(expected.shape[1]) if token != 9]
    assert numpy.array_equal(found[2:, kept], expected[:, kept])
