"""Charged once, released once, refused with a time to come back."""

import random
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.engine.sampling_params import SEED_MAX, SamplingParams
from triolet.runtime.config import AdmissionLimits
from triolet.runtime.errors import Overloaded
from triolet.runtime.frontend.admission import (
    FREE_ROWS_S,
    PRINCIPALS_MAX,
    REMEMBERED_S,
    Admission,
    Ticket,
)


def make(requests: int = 2, tokens: int = 100) -> Admission:
    limits = AdmissionLimits(active_requests_max=requests, queued_tokens_max=tokens)
    return Admission(limits, random.Random(1), lambda: 0.0)


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
        first.handle_first_token()
        first.handle_first_token()
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
    admission = Admission(limits, random.Random(1), lambda: 0.0)
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


def enter(stack: ExitStack, admission: Admission, principal: str, count: int) -> int:
    """Ask so often; how many were admitted."""
    admitted = 0
    for _ in range(count):
        try:
            stack.enter_context(admission.open_ticket(1, principal=principal))
            admitted += 1
        except Overloaded:
            pass
    return admitted


def test_a_lone_principal_has_everything() -> None:
    admission = make(requests=100, tokens=1000)
    with ExitStack() as stack:
        assert enter(stack, admission, "flood", 200) == 100


def test_one_that_floods_leaves_room_for_others() -> None:
    admission = make(requests=100, tokens=1000)
    with ExitStack() as stack:
        enter(stack, admission, "other", 1)
        assert enter(stack, admission, "flood", 200) == 80
        assert enter(stack, admission, "third", 5) == 5
        assert enter(stack, admission, "flood", 200) == 0
        with (
            pytest.raises(Overloaded, match="active_requests_max"),
            admission.open_ticket(principal="flood"),
        ):
            pass
    assert admission.active_requests == 0


def test_those_that_flood_get_equal_shares() -> None:
    admission, inside = make(requests=100, tokens=1000), list[tuple[str, ExitStack]]()
    chance = random.Random(1)
    for _ in range(4000):
        principal = chance.choice(("a", "a", "a", "a", "b", "c"))
        stack = ExitStack()
        if enter(stack, admission, principal, 1):
            inside.append((principal, stack))
        if len(inside) > 80:
            inside.pop(chance.randrange(len(inside)))[1].close()
    held = [sum(each == name for name, _ in inside) for each in "abc"]
    assert max(held) <= 4 * (100 - sum(held) + 1)
    assert min(held) >= 10
    admission.check_invariants()
    for _, stack in inside:
        stack.close()


def test_queued_tokens_are_shared_as_requests_are() -> None:
    admission = make(requests=100, tokens=100)
    with (
        admission.open_ticket(1, principal="other"),
        admission.open_ticket(70, principal="flood"),
    ):
        with (
            pytest.raises(Overloaded, match="queued_tokens_max"),
            admission.open_ticket(10, principal="flood"),
        ):
            pass
        with admission.open_ticket(25, principal="third"):
            assert admission.queued_tokens == 96


def test_those_that_have_gone_are_forgotten() -> None:
    now = [0.0]
    admission = Admission(AdmissionLimits(active_requests_max=10), random.Random(1), lambda: now[0])
    with admission.open_ticket(principal="other"):
        pass
    with ExitStack() as stack:
        assert enter(stack, admission, "flood", 10) == 8
        now[0] = REMEMBERED_S + 1
        assert enter(stack, admission, "flood", 10) == 2
    for number in range(3 * PRINCIPALS_MAX):
        with admission.open_ticket(principal=f"p{number}"):
            pass
    assert len(admission._held) <= PRINCIPALS_MAX


def overloaded(target_s: float) -> tuple[Admission, list[float], ExitStack]:
    """Eight have begun in a second, 40 in five; 80 are ahead."""
    now, stack = [0.0], ExitStack()
    admission = Admission(AdmissionLimits(), random.Random(1), lambda: now[0], target_s)
    tickets = [stack.enter_context(admission.open_ticket(1, principal="flood")) for _ in range(120)]
    now[0] = FREE_ROWS_S
    for ticket in tickets[:40]:
        now[0] += 1 / 10
        ticket.handle_first_token()
    return admission, now, stack


def test_a_wait_above_the_target_is_refused_with_the_time_until_it_is_not() -> None:
    admission, _, stack = overloaded(target_s=6.0)
    with stack:
        with (
            pytest.raises(Overloaded, match="wait_target_s") as caught,
            admission.open_ticket(principal="flood"),
        ):
            pass
        assert 4.0 <= caught.value.retry_after_s <= 6.0
        with admission.open_ticket(principal="other"):
            pass
        admission.check_invariants()


@pytest.mark.parametrize("target_s", [0.0, 11.0])
def test_a_wait_below_the_target_or_without_one_is_taken(target_s: float) -> None:
    admission, _, stack = overloaded(target_s)
    with stack, admission.open_ticket(principal="flood"):
        pass


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
                ticket.handle_first_token()
                charged[0] = 0
        admission.check_invariants()
        assert admission.active_requests == len(inside)
        assert admission.queued_tokens == sum(charged[0] for _, _, charged in inside)
    for stack, _, _ in inside:
        stack.close()
    assert (admission.active_requests, admission.queued_tokens) == (0, 0)
