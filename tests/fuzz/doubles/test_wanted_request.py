"""What must come out is told by the stop rules, and what comes otherwise does not pass."""

import attrs
import pytest

from triolet.engine.messages import AddRequest, FinishReason, RequestOutput
from triolet.engine.sampling_params import SamplingParams
from triolet.fuzz.doubles.wanted_request import WantedRequest, make_wanted

VOCAB = 9
MODEL_LEN = 20


def want(**sampling: object) -> WantedRequest:
    params = SamplingParams(**{"seed": 1, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    add = AddRequest(request_id="r", attempt=1, prompt_token_ids=[1, 2], sampling=params)
    return make_wanted("f0", add, model_len=MODEL_LEN, vocab_size=VOCAB)


def output(wanted: WantedRequest, first: int, end: int, **more: object) -> RequestOutput:
    return RequestOutput(
        request_id="r",
        attempt=1,
        first_index=first,
        token_ids=wanted.tokens[first:end],
        **more,  # type: ignore[arg-type]
    )


def test_how_it_ends() -> None:
    assert len(want().tokens) == MODEL_LEN - 2
    assert len(want(max_tokens=3).tokens) == 3
    free = want()
    stopped = want(stop_token_ids=(free.tokens[4],))
    assert stopped.tokens == free.tokens[: free.tokens.index(free.tokens[4]) + 1]
    assert stopped.reason is FinishReason.STOP
    assert stopped.stop_token_id == free.tokens[4]


def test_it_hears_what_it_wants_to_hear() -> None:
    wanted = want(max_tokens=3)
    wanted.hear(output(wanted, 0, 2))
    wanted.hear(output(wanted, 2, 3, finish_reason=FinishReason.LENGTH))
    assert not wanted.is_live
    with pytest.raises(AssertionError, match="after the end"):
        wanted.hear(output(wanted, 2, 3))


def test_what_it_does_not_take() -> None:
    wanted = want(max_tokens=3)
    wrong = [
        output(wanted, 1, 2),
        attrs.evolve(output(wanted, 0, 1), token_ids=[VOCAB]),
        output(wanted, 0, 2, finish_reason=FinishReason.LENGTH),
        output(wanted, 0, 3, finish_reason=FinishReason.STOP),
    ]
    for each in wrong:
        with pytest.raises(AssertionError):
            attrs.evolve(wanted).hear(each)
    wanted.credit = 1
    with pytest.raises(AssertionError):
        wanted.hear(output(wanted, 0, 2))
