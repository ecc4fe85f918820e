"""The store: names and attempts, and a memory of ends that is bounded in count and in tokens."""

import hypothesis.strategies as st
from hypothesis import given, settings

from triolet.engine.core.request_store import FinishedRequest, RequestStore
from triolet.engine.messages import FinishReason, RequestKey
from triolet.tests.engine.core.driver import new_request


def record(name: str, *, frontend: str = "f0", tokens: int = 2) -> FinishedRequest:
    return FinishedRequest(
        frontend=frontend,
        request_id=name,
        attempt=1,
        output_token_ids=list(range(tokens)),
        finish_reason=FinishReason.STOP,
        stop_token_id=tokens - 1,
    )


def test_requests_are_found_by_frontend_id_and_attempt() -> None:
    store = RequestStore()
    first, other = new_request("a", attempt=2), new_request("a", frontend="f1")
    store.insert(first)
    store.insert(other)
    assert store.find("f0", "a") is first
    assert store.find("f2", "a") is None
    assert store.find_attempt("f0", "a", 2) is first
    assert store.find_attempt("f0", "a", 1) is None
    assert store.live("f1") == [other]
    assert store.live_count() == 2
    store.remove(first)
    assert store.find("f0", "a") is None
    assert store.live("f0") == []
    store.check_invariants()


def test_end_is_sent_from_any_index() -> None:
    output = record("a").output_from(1)
    assert (output.first_index, output.token_ids) == (1, [1])
    assert (output.finish_reason, output.stop_token_id) == (FinishReason.STOP, 1)


def test_new_request_takes_the_place_of_what_ended_under_its_name() -> None:
    store = RequestStore()
    store.keep_finished(record("a"))
    assert store.find_finished("f0", RequestKey("a", 1)) == record("a")
    assert store.find_finished("f0", RequestKey("a", 2)) is None
    assert store.find_finished("f1", RequestKey("a", 1)) is None
    store.insert(new_request("a"))
    assert store.find_finished("f0", RequestKey("a", 1)) is None
    store.check_invariants()


def test_frontend_forgets_only_its_own() -> None:
    store = RequestStore()
    for name, frontend in (("a", "f0"), ("b", "f0"), ("a", "f1")):
        store.keep_finished(record(name, frontend=frontend))
    store.forget_finished("f0", keep={"b"})
    assert store.find_finished("f0", RequestKey("a", 1)) is None
    assert store.find_finished("f0", RequestKey("b", 1)) is not None
    assert store.find_finished("f1", RequestKey("a", 1)) is not None
    store.check_invariants()


def kept(store: RequestStore) -> list[str]:
    return [name for name in "abcde" if store.find_finished("f0", RequestKey(name, 1)) is not None]


def test_oldest_goes_at_the_bound() -> None:
    store = RequestStore(finished_count_max=2, finished_tokens_max=5)
    for name in ("a", "b", "c"):
        store.keep_finished(record(name))
    assert kept(store) == ["b", "c"]
    store.keep_finished(record("d", tokens=3))
    assert kept(store) == ["c", "d"]
    store.keep_finished(record("e", tokens=6))  # too long to be kept at all
    assert kept(store) == []
    store.check_invariants()


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 6))))
def test_bounds_hold_whatever_ends(ends: list[tuple[str, int]]) -> None:
    store = RequestStore(finished_count_max=3, finished_tokens_max=8)
    for name, tokens in ends:
        store.keep_finished(record(name, tokens=tokens))
        store.check_invariants()
        kept = store.find_finished("f0", RequestKey(name, 1))
        assert kept is not None
        assert len(kept.output_token_ids) == tokens
