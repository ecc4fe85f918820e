"""Large messages are cut, and say the same in their parts."""

import pytest

from triolet.engine.messages import RequestOutput, StepOutputs, TokenLogprobs
from triolet.engine.process.message_parts import PART_BYTES_MAX, split_outputs


def output(name: str, size: int, *, of_prompt: bool = False) -> RequestOutput:
    """Its arrays take `size` bytes."""
    told = TokenLogprobs(1, bytes(size), b"", b"") if size else None
    return RequestOutput(
        request_id=name,
        attempt=1,
        first_index=0,
        token_ids=[1],
        logprobs=None if of_prompt else told,
        prompt_logprobs=told if of_prompt else None,
    )


def message(*outputs: RequestOutput) -> StepOutputs:
    return StepOutputs(3, list(outputs), [1], [2], [3])


@pytest.mark.parametrize("sizes", [[], [0, 0], [PART_BYTES_MAX], [PART_BYTES_MAX - 1, 0, 1]])
def test_what_fits_is_one_message(sizes: list[int]) -> None:
    whole = message(*[output(str(i), size) for i, size in enumerate(sizes)])
    assert split_outputs(whole) == [whole]


@pytest.mark.parametrize("of_prompt", [False, True])
def test_what_does_not_is_several_in_order(of_prompt: bool) -> None:
    half = PART_BYTES_MAX // 2
    sizes = [half + 1, half, 0, 1, 2 * PART_BYTES_MAX, 1]
    outputs = [output(str(i), size, of_prompt=of_prompt) for i, size in enumerate(sizes)]
    parts = split_outputs(message(*outputs))
    assert [[o.request_id for o in part.outputs] for part in parts] == [
        ["0"],
        ["1", "2", "3"],
        ["4"],
        ["5"],
    ]
    assert [part.attempts for part in parts] == [[1], [], [], []]
    assert {part.step for part in parts} == {3}
