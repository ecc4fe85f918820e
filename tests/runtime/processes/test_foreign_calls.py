"""Calls go to the rank, answers to the very epoch that asked."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.runtime.messages import ForeignCall, ForeignOutcome, ForeignVerb
from triolet.runtime.processes.membership import Delivery, deliver, reply_to

CALL = ForeignCall(
    caller=0,
    caller_epoch=5,
    call_id=9,
    frontend=1,
    verb=ForeignVerb.CANCEL,
    response_id="resp_x",
    principal="p",
)
FOUND = reply_to(CALL, ForeignOutcome.FOUND, "{}")
GONE = reply_to(CALL, ForeignOutcome.GONE)


@pytest.mark.parametrize(
    ("message", "epochs", "delivery"),
    [
        (CALL, {0: 5, 1: 6}, Delivery(1, CALL)),
        (CALL, {0: 5, 1: 99}, Delivery(1, CALL)),  # a successor answers for itself
        (CALL, {0: 5}, Delivery(0, GONE)),
        (CALL, {0: 7}, None),  # both are gone, and the caller's successor has not asked
        (CALL, {}, None),
        (FOUND, {0: 5, 1: 6}, Delivery(0, FOUND)),
        (FOUND, {0: 5}, Delivery(0, FOUND)),
        (FOUND, {0: 7, 1: 6}, None),
        (FOUND, {1: 6}, None),
    ],
)
def test_where_messages_go(
    message: object, epochs: dict[int, int], delivery: Delivery | None
) -> None:
    assert isinstance(message, type(CALL) | type(FOUND))
    assert deliver(message, epochs) == delivery


@given(
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(1, 4),
    st.dictionaries(st.integers(0, 3), st.integers(1, 4)),
)
def test_nothing_goes_to_who_is_not_there_or_has_not_asked(
    caller: int, frontend: int, epoch: int, epochs: dict[int, int]
) -> None:
    call = attrs.evolve(CALL, caller=caller, caller_epoch=epoch, frontend=frontend)
    for message in (call, reply_to(call, ForeignOutcome.FOUND)):
        delivery = deliver(message, epochs)
        if delivery is None:
            assert epochs.get(caller) != epoch
            continue
        assert delivery.frontend in epochs
        if not isinstance(delivery.message, ForeignCall):
            assert (delivery.frontend, epochs[caller]) == (caller, epoch)
