"""Stop rules in order: end of sequence, stop tokens, length; min_tokens delays the first two."""

import pytest

from triolet.engine.core.request import make_request
from triolet.engine.core.stop_check import Stop, check_stop
from triolet.engine.messages import AddRequest, FinishReason
from triolet.engine.sampling_params import SamplingParams

END = Stop(FinishReason.STOP)
LENGTH = Stop(FinishReason.LENGTH)


def stop_of(
    output: list[int],
    *,
    prompt: tuple[int, ...] = (1, 2),
    max_tokens: int | None = 5,
    min_tokens: int = 0,
    stop_token_ids: tuple[int, ...] = (7,),
    ignore_eos: bool = False,
) -> Stop | None:
    add = AddRequest(
        request_id="a",
        attempt=1,
        prompt_token_ids=list(prompt),
        output_token_ids=output,
        eos_token_ids=[8, 9],
        sampling=SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=stop_token_ids,
            ignore_eos=ignore_eos,
        ),
    )
    return check_stop(make_request("f0", add, arrival=1, max_model_len=10))


@pytest.mark.parametrize(
    ("output", "stop"),
    [
        ([], None),
        ([3], None),
        ([8], END),
        ([3, 9], END),
        ([7], Stop(FinishReason.STOP, 7)),
        ([3] * 4, None),
        ([3] * 5, LENGTH),
        ([3] * 4 + [8], END),
        ([3] * 4 + [7], Stop(FinishReason.STOP, 7)),
    ],
)
def test_rules_in_order(output: list[int], stop: Stop | None) -> None:
    assert stop_of(output) == stop


def test_end_of_sequence_comes_before_stop_tokens() -> None:
    assert stop_of([8], stop_token_ids=(8,)) == END
    assert stop_of([8], stop_token_ids=(8,), ignore_eos=True) == Stop(FinishReason.STOP, 8)


def test_ignored_end_of_sequence_goes_on_to_the_length() -> None:
    assert stop_of([8, 8], ignore_eos=True) is None
    assert stop_of([8] * 5, ignore_eos=True) == LENGTH


def test_prompt_does_not_stop() -> None:
    assert stop_of([], prompt=(1, 8)) is None


def test_below_min_tokens_only_length_counts() -> None:
    assert stop_of([8], min_tokens=2) is None
    assert stop_of([7], min_tokens=2) is None
    assert stop_of([3, 8], min_tokens=2) == END
    assert stop_of([3] * 8, min_tokens=9, max_tokens=None) == LENGTH


def test_model_length_is_the_bound_without_max_tokens() -> None:
    assert stop_of([3] * 7, max_tokens=None) is None
    assert stop_of([3] * 8, max_tokens=None) == LENGTH
