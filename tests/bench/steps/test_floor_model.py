"""Floors of the shapes that figures are given for, against a count by hand."""

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.bench.steps.floor_model import ModelSizes, RowWork, StepWork, decode_rows, prefill_rows
from triolet.bench.steps.shapes import SMALL
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.model_config.config import load_model_config
from triolet.engine.model_config.experts import Experts

SIZES = ModelSizes(
    layers=8,
    hidden_size=1024,
    intermediate_size=3072,
    vocab_size=32_000,
    heads=16,
    kv_heads=8,
    head_size=128,
)


def test_sizes_are_those_of_a_folder() -> None:
    config = load_model_config(bundled_model_folder())
    sizes = ModelSizes.of(config)
    assert (sizes.layers, sizes.hidden_size) == (config.layers, config.hidden_size)
    assert sizes.layer_values(0) == ModelSizes.of(config).layer_values(9)


def test_of_experts_those_are_read_that_tokens_go_to() -> None:
    experts = Experts(count=16, chosen=4, intermediate_size=512, normalized=True)
    mixed = attrs.evolve(SIZES, experts=experts, expert_layers=8)
    attention, router, expert = 1024 * 6 * 1024, 1024 * 16, 3 * 1024 * 512
    one = StepWork.of(mixed, decode_rows(1, 512))
    values = 8 * (attention + router + 4 * expert) + 1024 * 32_000
    assert one.weight_bytes == 2 * values
    assert one.operations == 2 * values + 4 * 512 * 16 * 128 * 8
    two = StepWork.of(mixed, decode_rows(2, 512))
    assert two.weight_bytes - one.weight_bytes == 2 * 8 * 3 * expert  # a quarter is met again
    assert two.operations == 2 * one.operations
    every = StepWork.of(mixed, prefill_rows(4096)).weight_bytes
    assert every == one.weight_bytes + 2 * 8 * 12 * expert


def test_a_decode_step_reads_every_weight_and_the_rows_kv() -> None:
    work = StepWork.of(SIZES, decode_rows(8, 512))
    matrices = sum(math.prod(s) for s in SMALL.tensors().values() if len(s) == 2)
    assert work.weight_bytes == 2 * matrices  # the tied embedding is the output's matrix
    assert work.kv_bytes == 8 * 512 * 32 * 1024  # 32 KiB a token
    assert work.operations == 8 * (2 * matrices + 4 * 512 * 16 * 128 * 8)


def test_a_prefill_needs_keys_and_values_of_each_token_and_one_that_samples() -> None:
    work = StepWork.of(SIZES, prefill_rows(512))
    keys, rest = 1024 * 2048, 1024 * 2 * 2048 + 3 * 1024 * 3072
    layers = 512 * (8 * keys + 7 * rest) + rest
    attention = 4 * 16 * 128 * (7 * (512 * 513 // 2) + 512)
    assert work.operations == 2 * layers + 2 * 1024 * 32_000 + attention


def test_a_chunk_that_samples_nothing_leaves_out_the_rest_of_the_last_layer() -> None:
    experts = Experts(count=16, chosen=4, intermediate_size=512, normalized=True)
    mixed = attrs.evolve(SIZES, experts=experts, expert_layers=8)
    row = RowWork(new=1, context=1)
    silent = StepWork.of(mixed, [attrs.evolve(row, samples=False)]).operations
    rest = 1024 * 2 * 2048 + 1024 * 16 + 4 * 3 * 1024 * 512
    spoken = 2 * (rest + 1024 * 32_000) + 4 * 16 * 128
    assert StepWork.of(mixed, [row]).operations - silent == spoken


def test_the_floor_is_reading_at_batch_1_and_multiplying_in_a_prefill() -> None:
    rates = {"read_gb_s": 50.0, "multiply_gflop_s": 1000.0}
    one = StepWork.of(SIZES, decode_rows(1, 512))
    assert one.floor_s(**rates) == pytest.approx((one.weight_bytes + one.kv_bytes) / 50e9)
    many = StepWork.of(SIZES, prefill_rows(512))
    assert many.floor_s(**rates) == pytest.approx(many.operations / 1e12 + many.kv_bytes / 50e9)


def test_an_unknown_rate_makes_an_unknown_floor() -> None:
    work = StepWork.of(SIZES, decode_rows(1, 512))
    assert math.isnan(work.floor_s(read_gb_s=50.0, multiply_gflop_s=math.nan))


ROWS = st.lists(
    st.tuples(st.integers(1, 64), st.integers(0, 64)).map(
        lambda pair: RowWork(new=pair[0], context=pair[0] + pair[1])
    ),
    max_size=6,
)


@given(ROWS, st.integers(1, 32))
def test_chunks_multiply_as_much_as_the_whole(rows: list[RowWork], cut: int) -> None:
    for row in rows:
        if cut < row.new:
            first = RowWork(new=cut, context=row.context - row.new + cut, samples=False)
            second = RowWork(new=row.new - cut, context=row.context)
            parts = [StepWork.of(SIZES, [each]).operations for each in (first, second)]
            assert sum(parts) == StepWork.of(SIZES, [row]).operations
