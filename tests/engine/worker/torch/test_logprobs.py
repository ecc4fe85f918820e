"""Logprobs of raw logits, against their specification and against torch's softmax."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.worker.torch.logprobs import logprobs_of

from ..specified_sampler import specified_logprobs

LOGITS = st.lists(
    st.sampled_from([-math.inf, -200.0, -0.0, 0.0, 1.0, 1.0]) | st.floats(-30, 30, width=32),
    min_size=1,
    max_size=20,
).filter(lambda values: max(values) > -math.inf)


@given(logits=LOGITS, token=st.integers(0, 19), alternatives=st.integers(0, 22))
def test_as_specified(logits: list[float], token: int, alternatives: int) -> None:
    token %= len(logits)
    found = logprobs_of(torch.tensor([logits]), [token], alternatives)
    ids, values, rank = specified_logprobs(logits, token, alternatives)
    assert found.token_ids_RC.tolist() == [ids]
    assert found.logprobs_RC.tolist() == [values]
    assert found.ranks_R.tolist() == [rank]
    assert found.finite_R.tolist() == [True]


def test_is_near_the_logarithm_of_softmax() -> None:
    logits = torch.randn((5, 1000), generator=torch.Generator().manual_seed(1)) * 4
    found = logprobs_of(logits, [3, 1, 4, 1, 5], 1000)
    expected = logits.double().log_softmax(-1).gather(1, found.token_ids_RC.long()).float()
    assert torch.allclose(found.logprobs_RC, expected, rtol=0, atol=2e-6)
    assert (found.logprobs_RC[:, 1:].diff(dim=-1) <= 0).all()


def test_rows_without_numbers_are_told() -> None:
    nan, inf = math.nan, math.inf
    logits = torch.tensor([[nan, 0.0], [inf, 0.0], [-inf, -inf], [-inf, 0.0]])
    assert logprobs_of(logits, [0] * 4, 2).finite_R.tolist() == [False, False, False, True]


def test_a_message_has_what_was_found() -> None:
    found = logprobs_of(torch.tensor([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0]]), [1, 1], 2)
    message = found.message(7, 30)
    assert (message.row, message.first, message.width) == (7, 30, 3)
    assert np.frombuffer(message.token_ids, "<i4").tolist() == [1, 2, 0, 1, 0, 2]
    assert np.frombuffer(message.ranks, "<i4").tolist() == [3, 3]
    logprobs = np.frombuffer(message.logprobs, "<f4").reshape(2, 3)
    assert logprobs[0, 0] == logprobs[0, 2]
    assert np.allclose(np.exp(logprobs[1]).sum(), 1.0)
