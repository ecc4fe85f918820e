"""The structures' sizes, and steps that the kernels refuse before they touch anything."""

import pathlib
from collections.abc import Callable

import attrs
import numpy
import pytest

from triolet.engine.kernels.binding import Kernels, NativeFault, check_structures
from triolet.engine.kernels.library import open_library
from triolet.engine.kernels.memory import address_of, take_memory
from triolet.engine.kernels.model import ForwardStep, int32s

from ..model.tiny_models import write_config
from .small_models import BLOCKS, load_native

pytestmark = pytest.mark.usefixtures("kernels_here")
GOOD = ForwardStep(
    token_ids=int32s([5, 6, 7]),
    rows=int32s([0, 1]),
    begins=int32s([0, 0]),
    counts=int32s([2, 1]),
    block_tables=numpy.array([[1, 2], [3, 4]], numpy.int32),
    logit_tokens=int32s([1, 2]),
)
BAD: dict[str, tuple[Callable[[ForwardStep], ForwardStep], int]] = {
    "a negative position": (lambda s: attrs.evolve(s, begins=int32s([-1, 0])), 1),
    "a position beyond the last": (lambda s: attrs.evolve(s, begins=int32s([0, 2**31 - 1])), 1),
    "a sequence of nothing": (lambda s: attrs.evolve(s, counts=int32s([3, 0])), 1),
    "a table that is too short": (lambda s: attrs.evolve(s, begins=int32s([0, 32])), 2),
    "a block that there is not": (
        lambda s: attrs.evolve(s, block_tables=s.block_tables + BLOCKS), 2
    ),
    "a negative block": (lambda s: attrs.evolve(s, block_tables=s.block_tables - 2), 2),
    "counts that do not add up": (lambda s: attrs.evolve(s, counts=int32s([2, 2])), 3),
    "a token out of the vocabulary": (lambda s: attrs.evolve(s, token_ids=int32s([5, 6, 101])), 4),
    "a negative token": (lambda s: attrs.evolve(s, token_ids=int32s([-1, 6, 7])), 4),
    "logits of no token": (lambda s: attrs.evolve(s, logit_tokens=int32s([1, 3])), 5),
}  # fmt: skip


def test_structures_have_the_sizes_of_the_other_side() -> None:
    check_structures()


@pytest.mark.parametrize("case", list(BAD))
def test_an_inconsistent_step_is_refused_and_changes_nothing(
    tmp_path: pathlib.Path, case: str
) -> None:
    model = load_native(write_config(tmp_path), dummy=True)
    expected = model.forward(GOOD).copy()
    spoil, code = BAD[case]
    with pytest.raises(NativeFault) as caught:
        model.forward(spoil(GOOD))
    assert caught.value.code == code
    assert str(caught.value)
    assert numpy.array_equal(model.forward(GOOD), expected)


def test_logits_of_a_token_that_is_not_there_are_refused(tmp_path: pathlib.Path) -> None:
    model = load_native(write_config(tmp_path), dummy=True)
    kept = attrs.evolve(GOOD, keeps_all=True)
    model.forward(kept)
    with pytest.raises(NativeFault, match="not in the step"):
        model.logits(kept, int32s([3]))


def test_logits_of_tokens_that_were_not_kept_are_refused(tmp_path: pathlib.Path) -> None:
    model = load_native(write_config(tmp_path), dummy=True)
    model.forward(GOOD)
    with pytest.raises(ValueError, match="as far as logits"):
        model.logits(GOOD, int32s([0]))


def test_more_than_the_memory_was_made_for_is_refused(tmp_path: pathlib.Path) -> None:
    model = load_native(write_config(tmp_path), dummy=True)
    many = attrs.evolve(GOOD, logit_tokens=int32s([1] * (model.logit_rows_max + 1)))
    with pytest.raises(ValueError, match="rows of logits"):
        model.forward(many)
    with pytest.raises(ValueError, match="a step of"):
        model.forward(attrs.evolve(GOOD, token_ids=int32s([1] * (model.tokens_max + 1))))


def test_memory_that_cannot_have_pages_is_told() -> None:
    kernels = Kernels.of(open_library())
    memory = take_memory(3 * 4096)
    kernels.populate(address_of(memory), len(memory), threads=2)
    assert not memory.any()
    nowhere = 2**46  # nothing is mapped there
    with pytest.raises(MemoryError, match="no pages for 8192 bytes"):
        kernels.populate(nowhere, 8192, threads=1)
