"""Claims of idempotency keys: the table, the bounds, and that a home keeps what it said."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.errors import ApiError
from triolet.api.streams.claims import (
    Claim,
    ClaimCall,
    Claims,
    KeyedRequest,
    NextStep,
    Standing,
    home_of,
    judge,
)
from triolet.api.streams.executions import Executions

from .frontends import Values

BODY: dict[str, Any] = {"input": "hi", "runtime": {"seed": 1}}


def read(key: str = "k", principal: str = "p", path: str = "/v1/responses", **body: Any) -> Any:
    return KeyedRequest.read(key, principal, path, {**BODY, **body})


def call(name: str, response_id: str, instead_of: str = "", digest: str = "d") -> ClaimCall:
    claim = Claim(name=name, digest=digest, response_id=response_id, epoch=1)
    return ClaimCall(claim, instead_of)


def test_a_key_is_its_principals_and_goes_with_one_route_and_body() -> None:
    first = read()
    turned = dict(reversed(BODY.items()))
    assert KeyedRequest.read("k", "p", "/v1/responses", turned) == first
    assert read(principal="q").name != first.name != read(key="l").name
    assert KeyedRequest.read("k1", "", "", BODY).name != KeyedRequest.read("1", "k", "", BODY).name
    for alike in (read(data_parallel_rank=1), read(runtime={"seed": 1, "data_parallel_rank": 0})):
        assert alike == first, "a retry may be sent to another engine"
    for other in (read(path="/v1/completions"), read(stream=True), read(runtime={"seed": 2})):
        assert (other.name == first.name, other.digest == first.digest) == (True, False)
    assert {home_of(read(key=str(number)).name, 3) for number in range(40)} == {0, 1, 2}


@pytest.mark.parametrize("key", ["", " ", "a b", "x" * 256, "caf\xe9", "a\tb", "a\n"])
def test_what_is_no_key_is_refused_by_the_name_of_the_header(key: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(key=key)
    assert (caught.value.status, caught.value.param) == (400, "Idempotency-Key")
    assert read(key="x" * 255) != read(key='"~!"')


@pytest.mark.parametrize(
    ("standing", "same", "other"),
    [
        (Standing.PENDING, NextStep.ASK_AGAIN, NextStep.ASK_AGAIN),
        (Standing.UNKNOWN, NextStep.CLAIM_INSTEAD, NextStep.CLAIM_INSTEAD),
        (Standing.RUNNING, NextStep.READ, 422),
        (Standing.ENDED, NextStep.READ, 422),
        (Standing.GONE, 410, 422),
        (Standing.LOST, 409, 422),
    ],
)
def test_the_next_step(standing: Standing, same: NextStep | int, other: NextStep | int) -> None:
    for digest, wanted in (("d", same), ("e", other)):
        claim = call("n", "r").claim
        if isinstance(wanted, NextStep):
            assert judge(claim, digest, standing, "why") is wanted
            continue
        with pytest.raises(ApiError) as caught:
            judge(claim, digest, standing, "why")
        assert (caught.value.status, caught.value.param) == (wanted, "Idempotency-Key")
        assert ("why" in caught.value.message) == (wanted != 422)


def test_the_oldest_are_forgotten_by_number_and_by_age() -> None:
    claims = Claims(2, 100, Values())
    for now, name in enumerate("abc"):
        assert claims.handle_claim(call(name, f"r{name}"), now).claimed_ns == now
    assert len(claims) == 2
    claims.check_invariants()
    assert claims.handle_claim(call("b", "late"), 100).response_id == "rb"
    assert claims.handle_claim(call("b", "late"), 101).response_id == "late"
    assert claims.handle_claim(call("c", "other"), 101).response_id == "rc"
    claims.check_invariants()


def test_of_an_earlier_boot_of_the_machine_they_are_kept_for_their_whole_time() -> None:
    journal = Values()
    before = Claims(8, 100, journal)
    before.handle_claim(call("a", "ra"), 10_000)
    before.handle_claim(call("b", "rb"), 10_001)
    after = Claims(8, 100, journal, 7)
    after.handle_claim(call("c", "rc"), 8)
    after.check_invariants()
    assert after.handle_claim(call("b", "late"), 106).response_id == "rb"
    assert after.handle_claim(call("a", "late"), 107).response_id == "late"
    assert after.handle_claim(call("c", "late"), 107).response_id == "rc"


def test_what_cannot_be_read_is_forgotten() -> None:
    journal = Values()
    Claims(8, 100, journal).handle_claim(call("a", "ra"), 0)
    for name in ("claim b", "tombstone x", "since"):
        journal.keep_value(name, b'{"another": "version"}')
    claims = Claims(8, 100, journal)
    claims.check_invariants()
    assert claims.handle_claim(call("a", "late"), 1).response_id == "ra"
    executions = Executions(8, 5, journal, is_whole=True)
    assert sorted(journal.values()) == ["claim a", "since"]
    assert executions.execution_of("r", 4, 0).standing is Standing.LOST


NAMES, IDS = st.sampled_from("ab"), st.sampled_from("123")


@given(
    st.lists(
        st.tuples(NAMES, IDS, st.sampled_from(["", "1", "2", "3"]), st.integers(0, 40)),
        max_size=40,
    ),
    st.integers(0, 5),
)
def test_a_claim_holds_until_it_is_found_unknown_or_old(
    calls: list[tuple[str, str, str, int]], deaths: int
) -> None:
    """Calls in any order, doubled, late, and with the home's deaths between them."""
    journal = Values()
    claims, now = Claims(2, 100, journal), 0
    held: dict[str, Claim] = {}
    for place, (name, response_id, instead_of, later) in enumerate(calls):
        now += later
        if deaths and place % deaths == 0:
            claims = Claims(2, 100, journal)
        before = held.get(name)
        claim = claims.handle_claim(call(name, response_id, instead_of), now)
        assert claims.handle_claim(call(name, "again"), now) == claim
        is_over = before is None or before.claimed_ns + 100 <= now
        if is_over or (before and before.response_id == instead_of):
            assert (claim.response_id, claim.claimed_ns) == (response_id, now)
        else:
            assert claim == before
        held[name] = claim
        claims.check_invariants()
