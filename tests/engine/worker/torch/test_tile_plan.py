"""Plan of a step's tiles: each token once, in order, in groups of successive tokens of one row."""

from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.worker.step_inputs import StepInputs
from triolet.engine.worker.torch.tile_plan import plan_tiles

PADDING_ROW = 99


def inputs_of(counts: list[int]) -> StepInputs:
    """As many tokens of each row; row r begins at position 10 · r."""
    rows = [row for row, count in enumerate(counts) for _ in range(count)]
    positions = [10 * row + i for row, count in enumerate(counts) for i in range(count)]
    return StepInputs(list(range(100, 100 + len(rows))), positions, rows, [], [])


def test_a_step_of_two_tiles() -> None:
    plans = plan_tiles(inputs_of([1, 5, 1]), padding_row=PADDING_ROW, tile=4, group_tokens=2)
    assert plans == [
        [[100, 101, 102, 103], [0, 10, 11, 12], [0, 1, 1, 1], [0, 1, 3, 0], [1, 2, 1, 0]],
        [[104, 105, 106, 0], [13, 14, 20, 0], [1, 1, 2, 99], [0, 2, 0, 0], [2, 1, 0, 0]],
    ]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 9), st.integers(1, 50))
def test_each_token_is_in_one_group_of_its_row(
    counts: list[int], group_tokens: int, tile: int
) -> None:
    inputs = inputs_of(counts)
    plans = plan_tiles(inputs, padding_row=PADDING_ROW, tile=tile, group_tokens=group_tokens)
    found = []
    for token_ids, positions, rows, first, count in plans:
        assert {len(part) for part in (token_ids, positions, rows, first, count)} == {tile}
        grouped = [
            place
            for begin, size in zip(first, count, strict=True)
            for place in range(begin, begin + size)
        ]
        real = [place for place, row in enumerate(rows) if row != PADDING_ROW]
        assert grouped == real == list(range(len(real)))
        for begin, size in zip(first, count, strict=True):
            assert size <= group_tokens
            places = range(begin, begin + size)
            assert len({rows[place] for place in places}) <= 1
            assert all(positions[place] - positions[begin] == place - begin for place in places)
        found += [(token_ids[place], positions[place], rows[place]) for place in real]
    assert found == list(zip(inputs.token_ids, inputs.positions, inputs.rows, strict=True))
