"""Masks of rows, and requests that wait for a grammar: until it comes or is refused."""

import pytest

from triolet.engine.core.engine_core import EngineCore
from triolet.engine.core.grammar import fill_masks, mask_bytes
from triolet.engine.core.request import Request
from triolet.engine.errors import InvalidParameter
from triolet.engine.messages import FinishReason, RequestKey
from triolet.tests.engine.core.driver import (
    FORM,
    VOCAB,
    CountingGrammar,
    Driver,
    add_request,
    add_structured,
    make_core,
    tokens_alone,
)


@pytest.mark.parametrize(("vocab_size", "size"), [(1, 4), (32, 4), (33, 8), (2048, 256)])
def test_a_row_is_whole_words(vocab_size: int, size: int) -> None:
    assert mask_bytes(vocab_size) == size


def test_rows_are_in_order_and_an_ended_one_allows_all() -> None:
    first = CountingGrammar([{0, 33}], length=2, vocab_size=40)
    last = CountingGrammar([{1}, {39}], length=2, vocab_size=40)
    assert last.accept(1)
    words = fill_masks([first, None, last], 40)
    rows = [int.from_bytes(words[begin : begin + 8], "little") for begin in (0, 8, 16)]
    assert rows == [1 | 1 << 33, 2**64 - 1, 1 << 39]
    assert fill_masks([], 40) == b""


ANY = set(range(VOCAB))


def only_order(core: EngineCore) -> Request:
    [order] = core.take_grammar_orders()
    assert core.take_grammar_orders() == []
    return order


@pytest.fixture
def driver() -> Driver:
    return Driver(make_core())


def test_it_waits_and_delays_no_other(driver: Driver) -> None:
    driver.core.add("f0", add_structured("a"))
    driver.core.add("f0", add_request("b"))
    order = only_order(driver.core)
    assert (order.request_id, order.sampling.structured_outputs) == ("a", FORM)
    driver.run()
    assert driver.tokens("b")
    assert not driver.tokens("a")
    grammar = CountingGrammar([ANY], length=9, vocab_size=VOCAB)
    driver.core.grammar_compiled(order, grammar)
    driver.run()
    assert driver.tokens("a") == tokens_alone(add_request("a")) == grammar.accepted


def test_a_complete_output_ends_it(driver: Driver) -> None:
    driver.core.add("f0", add_structured("a"))
    grammar = CountingGrammar([ANY], length=2, vocab_size=VOCAB)
    driver.core.grammar_compiled(only_order(driver.core), grammar)
    driver.run()
    assert len(driver.tokens("a")) == 2
    assert driver.last("a").finish_reason is FinishReason.STOP
    assert driver.core.statistics().kv_blocks_free == 8


def test_a_token_that_cannot_come_fails_it_alone(driver: Driver) -> None:
    driver.core.add("f0", add_structured("a"))
    driver.core.add("f0", add_request("b"))
    first = tokens_alone(add_request("a"))[0]
    grammar = CountingGrammar([{first}, ANY - set(tokens_alone(add_request("a")))], 9, VOCAB)
    driver.core.grammar_compiled(only_order(driver.core), grammar)
    driver.run()
    assert driver.tokens("a") == [first], "the token that was refused is not sent"
    last = driver.last("a")
    assert (last.finish_reason, last.error_code) == (FinishReason.ERROR, "invalid_parameter")
    assert "cannot come here" in last.error
    assert driver.last("b").finish_reason is FinishReason.LENGTH


def test_what_cannot_be_compiled_fails_it_alone(driver: Driver) -> None:
    driver.core.add("f0", add_structured("a"))
    driver.core.add("f0", add_request("b"))
    driver.core.grammar_refused(
        only_order(driver.core), InvalidParameter("structured_outputs", "is too large")
    )
    driver.run()
    last = driver.last("a")
    assert (last.finish_reason, last.error_code) == (FinishReason.ERROR, "invalid_parameter")
    assert driver.last("b").finish_reason is FinishReason.LENGTH


def test_who_has_ended_is_not_compiled_for(driver: Driver) -> None:
    driver.core.add("f0", add_structured("a"))
    order = only_order(driver.core)
    driver.core.abort("f0", [RequestKey("a", 1)])
    driver.core.add("f0", add_structured("a", attempt=2))
    driver.core.grammar_compiled(order, CountingGrammar([ANY], 9, VOCAB))
    driver.core.grammar_refused(order, InvalidParameter("a", "b"))
    driver.take()
    assert not driver.core.has_work()
    assert not driver.heard


def test_a_replay_goes_on_under_its_grammar(driver: Driver) -> None:
    whole = tokens_alone(add_request("a"))
    driver.core.add("f0", add_structured("a", output=tuple(whole[:2])))
    order = only_order(driver.core)
    grammar = CountingGrammar([ANY], 9, VOCAB, accepted=whole[:2])
    driver.core.grammar_compiled(order, grammar)
    driver.run()
    assert grammar.accepted == whole


def test_a_replay_that_is_complete_ends_at_once(driver: Driver) -> None:
    driver.core.add("f0", add_structured("a", output=(5, 6)))
    grammar = CountingGrammar([ANY], 2, VOCAB, accepted=[5, 6])
    driver.core.grammar_compiled(only_order(driver.core), grammar)
    driver.take()
    last = driver.last("a")
    assert (last.finish_reason, last.first_index, last.token_ids) == (FinishReason.STOP, 2, [])
    assert not driver.core.has_work()


def test_its_rows_are_masked_where_they_sample(driver: Driver) -> None:
    core = driver.core
    assert core.take_mask() is None
    for name in ("a", "b"):
        core.add("f0", add_structured(name))
        core.grammar_compiled(only_order(core), CountingGrammar([{7}, {8}], 9, VOCAB))
    core.add("f0", add_request("free"))
    step = core.schedule(0.0)
    assert step is not None
    sampling = [row for row, samples in zip(step.rows, step.samples, strict=True) if samples]
    assert len(sampling) == 2, "of three prompts of 3 tokens, 8 tokens finish two"
    assert step.masked == sampling
    core.abort("f0", [RequestKey("b", 1)])
    mask = core.take_mask()
    assert mask is not None
    assert core.take_mask() is None
    assert mask.number == step.number
    rows = [mask.words[:8], mask.words[8:]]
    assert [int.from_bytes(row, "little") for row in rows] == [1 << 7, 2**64 - 1]
