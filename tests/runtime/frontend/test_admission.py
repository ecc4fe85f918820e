"""Charged once, released once, refused with a time to come back."""

import random
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.sampling_params import SEED_MAX, SamplingParams
from triolet.runtime.config import AdmissionLimits
from triolet.runtime.errors import Overloaded
from triolet.runtime.frontend.admission import Admission, Ticket


def make(requests: int = 2, tokens: int = 100) -> Admission:
    limits = AdmissionLimits(active_requests_max=requests, queued_tokens_max=tokens)
    return Admission(limits, random.Random(1))


def test_requests_are_limited() -> None:
    admission = make(requests=1)
    with admission.open_ticket():
        with pytest.raises(Overloaded) as caught, admission.open_ticket():
            pass
        assert caught.value.limit == "active_requests_max"
        assert 1.0 <= caught.value.retry_after_s <= 1.5
        assert admission.active_requests == 1
    with admission.open_ticket():
        assert (admission.admitted_total, admission.refused_total) == (2, 1)


def test_queued_tokens_are_limited_until_the_first_token() -> None:
    admission = make(tokens=100)
    with admission.open_ticket(80) as first:
        with pytest.raises(Overloaded, match="queued_tokens_max"), admission.open_ticket(30):
            pass
        assert (admission.queued_tokens, admission.active_requests) == (80, 1)
        first.release_tokens()
        first.release_tokens()
        with admission.open_ticket(30):
            assert admission.queued_tokens == 30
    assert admission.queued_tokens == 0


def test_an_estimate_is_replaced_by_the_count() -> None:
    admission = make(tokens=100)
    with admission.open_ticket(50), admission.open_ticket(10) as second:
        second.charge_tokens(40)
        assert admission.queued_tokens == 90
        with pytest.raises(Overloaded):
            second.charge_tokens(60)
        assert admission.queued_tokens == 90
        second.charge_tokens(5)
        assert admission.queued_tokens == 55


def test_a_prompt_above_the_limit_is_taken_alone() -> None:
    admission = make(tokens=100)
    with admission.open_ticket(1000), pytest.raises(Overloaded), admission.open_ticket(1):
        pass
    with (
        admission.open_ticket(1),
        pytest.raises(Overloaded),
        admission.open_ticket(1000),
    ):
        pass


def test_bytes_of_embeddings_are_limited_until_the_end() -> None:
    limits = AdmissionLimits(embeds_bytes_max=100)
    admission = Admission(limits, random.Random(1))
    with admission.open_ticket(1) as first, admission.open_ticket(1) as second:
        first.charge_embeds(1000)  # alone, it is taken
        first.release_tokens()
        with pytest.raises(Overloaded, match="embeds_bytes_max"):
            second.charge_embeds(1)
        assert admission.embeds_bytes == 1000
    with admission.open_ticket(1) as third:
        third.charge_embeds(100)
    assert admission.embeds_bytes == 0
    admission.check_invariants()


def test_seeds_come_from_the_random_that_was_passed() -> None:
    first, second = make().with_seed(SamplingParams()), make().with_seed(SamplingParams())
    assert first == second
    assert first.seed is not None
    assert 0 <= first.seed <= SEED_MAX
    given_seed = SamplingParams(seed=0)
    assert make().with_seed(given_seed) is given_seed


@given(st.data())
def test_counts_are_the_sum_of_what_is_in(data: st.DataObject) -> None:
    admission = make(requests=3, tokens=20)
    inside: list[tuple[ExitStack, Ticket, list[int]]] = []
    for _ in range(data.draw(st.integers(0, 25))):
        what = data.draw(st.sampled_from(["enter", "leave", "charge", "first token"]))
        tokens = data.draw(st.integers(0, 15))
        place = data.draw(st.integers(0, 2))
        if what == "enter":
            stack = ExitStack()
            try:
                ticket = stack.enter_context(admission.open_ticket(tokens))
                inside.append((stack, ticket, [tokens]))
            except Overloaded:
                pass
        elif place < len(inside):
            stack, ticket, charged = inside[place]
            if what == "leave":
                inside.pop(place)
                stack.close()
            elif what == "charge":
                try:
                    ticket.charge_tokens(tokens)
                    charged[0] = tokens
                except Overloaded:
                    pass
            else:
                ticket.release_tokens()
                charged[0] = 0
        admission.check_invariants()
        assert admission.active_requests == len(inside)
        assert admission.queued_tokens == sum(charged[0] for _, _, charged in inside)
    for stack, _, _ in inside:
        stack.close()
    assert (admission.active_requests, admission.queued_tokens) == (0, 0)
