"""Mixtures of experts: who is chosen, whose weights are read, and what is no number stays alone."""

import pathlib
from collections.abc import Mapping
from types import MappingProxyType

import attrs
import numpy
import pytest

from triolet.engine.kernels.library import machine_isas
from triolet.engine.kernels.model import NativeModel
from triolet.engine.kernels.weights import DummyTensors, Stored
from triolet.engine.model_config.config import QWEN3_MOE, load_model_config

from ..model.tiny_models import random_tokens, write_config
from .small_models import Driver, pack_native

pytestmark = pytest.mark.usefixtures("kernels_here")
every_isa = pytest.mark.parametrize("isa", machine_isas())
TOKENS = random_tokens(40, seed=4)
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
    return Driver(model, [[0, 1, 2]]).step([(0, 0, TOKENS)])


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
    assert 9 not in TOKENS
    driver = Driver(spoilt, [[0, 1, 2], [3]])
    found = driver.step([(1, 0, [9, 10]), (0, 0, TOKENS)])
    assert numpy.isnan(found[0]).all()
    kept = [token for token in range(expected.shape[1]) if token != 9]
    assert numpy.array_equal(found[2:, kept], expected[:, kept])
