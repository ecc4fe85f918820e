"""Tokens go to their requests, in columns where that is enough; what has ended gets none."""

import attrs

from triolet.engine.messages import FinishReason, RequestKey
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import StepResult
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.tests.engine.core.driver import VOCAB, Driver, add_request, make_core
from triolet.tests.engine.core.grammars import CountingGrammar


def test_columns_hold_what_needs_no_more_words() -> None:
    driver = Driver(make_core())
    driver.core.add("f0", attrs.evolve(add_request("a"), in_columns=True, attempt=5))
    driver.core.add("f0", add_request("b"))
    step = driver.core.schedule(0.0)
    assert step is not None
    message = driver.core.finish_step(StepResult(1, step.rows, [7, 8]), 0.0)["f0"]
    assert (message.attempts, message.indices, message.token_ids) == ([5], [0], [7])
    assert [(o.request_id, o.first_index, o.token_ids) for o in message.outputs] == [("b", 0, [8])]


def test_a_token_of_what_has_ended_is_dropped() -> None:
    driver = Driver(make_core())
    driver.core.add("f0", add_request("a"))
    driver.core.add("f1", add_request("b"))
    step = driver.core.schedule(0.0)
    assert step is not None
    driver.core.abort("f0", [RequestKey("a", 1)])
    assert set(driver.core.finish_step(StepResult(1, step.rows, [7, 8]), 0.0)) == {"f1"}
    assert driver.core.statistics().output_tokens == 1


def test_a_grammar_sees_every_token_of_columns_too() -> None:
    driver = Driver(make_core())
    structured = attrs.evolve(
        add_request("a"),
        in_columns=True,
        sampling=SamplingParams(
            max_tokens=9, seed=1, structured_outputs=StructuredOutputs.regex("a*")
        ),
    )
    driver.core.add("f0", structured)
    [order] = driver.core.grammars.take()
    grammar = CountingGrammar([{7}], 4, VOCAB)
    driver.core.grammar_compiled(order, grammar)
    while step := driver.core.schedule(0.0):
        messages = driver.core.finish_step(StepResult(step.number, step.rows, [7]), 0.0)
    assert grammar.accepted == [7, 7, 7, 7]
    assert messages["f0"].outputs[0].finish_reason is FinishReason.STOP
