"""Queue of forms: shared checks, turns, verdicts, crashes and losses."""

import random

import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.runtime.errors import FormsUnavailable
from triolet.runtime.forms.form_queue import (
    CHECKS_MAX,
    CHECKS_OF_PRINCIPAL_MAX,
    CRASHED_S,
    LOSSES_MAX,
    VERDICTS_MAX,
    WAITING_MAX,
    WAITING_OF_PRINCIPAL_MAX,
    FormCheck,
    FormQueue,
)
from triolet.runtime.forms.messages import FormChecked, FormOutcome


def form(number: int) -> StructuredOutputs:
    return StructuredOutputs.regex(f"a{{{number}}}")


def answered(
    queue: FormQueue, check: FormCheck, outcome: FormOutcome, reason: str = "", now: float = 0.0
) -> FormCheck | None:
    ended = queue.handle_checked(FormChecked(check.check_id, outcome, reason), now)
    queue.check_invariants()
    return ended


def test_requests_with_one_form_share_its_check_and_later_ones_its_verdict() -> None:
    queue = FormQueue()
    first, second = queue.handle_wanted(form(1), "a"), queue.handle_wanted(form(1), "b")
    assert first is second
    assert [each.form for each in queue.next_checks()] == [form(1)]
    assert queue.next_checks() == []
    assert answered(queue, first, FormOutcome.ACCEPTED) is first
    verdict = queue.verdict(form(1), 1e9)
    assert verdict is not None
    verdict.raise_refusal()
    assert queue.verdict(form(2), 0.0) is None


def test_a_refusal_is_raised_with_its_reason() -> None:
    queue = FormQueue()
    check = queue.handle_wanted(form(1), "")
    queue.next_checks()
    answered(queue, check, FormOutcome.REFUSED, "cannot be served: no")
    verdict = queue.verdict(form(1), 0.0)
    assert verdict is not None
    with pytest.raises(InvalidParameter, match=r"^structured_outputs cannot be served: no$"):
        verdict.raise_refusal()


def test_principals_take_turns_and_none_has_more_than_half() -> None:
    queue = FormQueue()
    for number in range(10):
        queue.handle_wanted(form(number), "flood")
    assert len(queue.next_checks()) == CHECKS_OF_PRINCIPAL_MAX
    queue.handle_wanted(form(100), "other")
    assert [each.form for each in queue.next_checks()] == [form(100)]
    for number in range(101, 110):
        queue.handle_wanted(form(number), "other")
        queue.handle_wanted(form(number + 100), "third")
    due = [each.form for each in queue.next_checks()]
    assert len(due) == CHECKS_MAX - CHECKS_OF_PRINCIPAL_MAX - 1
    queue.check_invariants()


def test_the_second_crash_of_a_form_refuses_it_for_a_while() -> None:
    queue = FormQueue()
    check = queue.handle_wanted(form(1), "")
    queue.next_checks()
    assert answered(queue, check, FormOutcome.CRASHED, "was killed by SIGSEGV") is None
    assert [each.form for each in queue.next_checks()] == [form(1)]
    ended = answered(queue, check, FormOutcome.CRASHED, "was killed by SIGSEGV", now=5.0)
    assert ended is check
    verdict = queue.verdict(form(1), 5.0 + CRASHED_S - 1.0)
    assert verdict is not None
    assert "killed by SIGSEGV" in verdict.refusal
    assert queue.verdict(form(1), 5.0 + CRASHED_S) is None


def test_a_form_that_takes_all_the_time_it_may_have_is_refused_at_once() -> None:
    queue = FormQueue()
    check = queue.handle_wanted(form(1), "")
    queue.next_checks()
    assert answered(queue, check, FormOutcome.SPENT, "was killed by SIGXCPU") is check
    verdict = queue.verdict(form(1), CRASHED_S - 1.0)
    assert verdict is not None
    assert "killed by SIGXCPU" in verdict.refusal


def test_a_check_that_was_ended_from_outside_begins_again_before_the_others() -> None:
    queue = FormQueue()
    checks = [queue.handle_wanted(form(number), "") for number in range(4)]
    assert [each.form for each in queue.next_checks()] == [form(0), form(1)]
    assert queue.handle_gone() == []
    queue.check_invariants()
    assert [each.form for each in queue.next_checks()] == [form(0), form(1)]
    assert answered(queue, checks[1], FormOutcome.LOST) is None
    assert [each.form for each in queue.next_checks()] == [form(1)]


def test_a_check_is_not_begun_for_ever() -> None:
    queue = FormQueue()
    check = queue.handle_wanted(form(1), "")
    for _ in range(LOSSES_MAX - 1):
        assert len(queue.next_checks()) == 1
        assert queue.handle_gone() == []
    queue.next_checks()
    assert queue.handle_gone() == [check]
    assert check.verdict is None
    assert queue.verdict(form(1), 0.0) is None
    queue.check_invariants()


def test_an_answer_of_the_process_before_is_dropped() -> None:
    queue = FormQueue()
    check = queue.handle_wanted(form(1), "")
    (old,) = queue.next_checks()
    queue.handle_gone()
    queue.next_checks()
    assert queue.handle_checked(FormChecked(old.check_id, FormOutcome.REFUSED), 0.0) is None
    assert answered(queue, check, FormOutcome.ACCEPTED) is check


def test_what_nobody_waits_for_is_not_begun() -> None:
    queue = FormQueue()
    check, under_way = queue.handle_wanted(form(2), "a"), queue.handle_wanted(form(1), "b")
    queue.handle_left(check)
    assert [each.form for each in queue.next_checks()] == [form(1)]
    queue.handle_left(under_way)
    queue.check_invariants()
    assert answered(queue, under_way, FormOutcome.ACCEPTED) is under_way, "its verdict is kept"
    assert queue.verdict(form(1), 0.0) is not None


def test_too_many_that_wait_are_refused_first_of_one_principal_then_of_all() -> None:
    queue = FormQueue()
    for number in range(WAITING_OF_PRINCIPAL_MAX):
        queue.handle_wanted(form(number), "a")
    with pytest.raises(FormsUnavailable):
        queue.handle_wanted(form(1000), "a")
    queue.handle_wanted(form(0), "a")  # a form that waits already costs nothing
    for number in range(WAITING_MAX - WAITING_OF_PRINCIPAL_MAX):
        queue.handle_wanted(form(2000 + number), f"principal {number}")
    with pytest.raises(FormsUnavailable) as caught:
        queue.handle_wanted(form(1000), "b")
    assert caught.value.retryable
    queue.check_invariants()


def test_verdicts_are_bounded_and_the_least_used_go_first() -> None:
    queue = FormQueue()
    for number in range(VERDICTS_MAX + 1):
        check = queue.handle_wanted(form(number), "")
        queue.next_checks()
        answered(queue, check, FormOutcome.ACCEPTED)
        queue.verdict(form(0), 0.0)
    assert queue.verdict(form(0), 0.0) is not None
    assert queue.verdict(form(1), 0.0) is None


@pytest.mark.parametrize("seed", range(20))
def test_invariants_hold_whatever_happens(seed: int) -> None:
    chance, queue, now = random.Random(seed), FormQueue(), 0.0
    waiting: list[FormCheck] = []
    sent: list[int] = []
    for _ in range(400):
        now += chance.random()
        match chance.randrange(5):
            case 0:
                number, principal = chance.randrange(40), chance.choice("abc")
                if queue.verdict(form(number), now) is None:
                    waiting.append(queue.handle_wanted(form(number), principal))
            case 1 if waiting:
                queue.handle_left(waiting.pop(chance.randrange(len(waiting))))
            case 2:
                sent += [each.check_id for each in queue.next_checks()]
            case 3 if sent:
                check_id = sent.pop(chance.randrange(len(sent)))
                outcome = chance.choice(list(FormOutcome))
                queue.handle_checked(FormChecked(check_id, outcome, "no"), now)
            case 4 if chance.random() < 0.1:
                queue.handle_gone()
        queue.check_invariants()
