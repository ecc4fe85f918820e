"""A matcher as the core sees it: masks, acceptance, the end, and what it does at a limit."""

import json

import pytest

from triolet.engine.core.grammar import mask_bytes
from triolet.engine.grammar.matcher import SPARE_S, TOKEN_S, TOO_SLOW, MatchedGrammar
from triolet.engine.process.grammar_compiler import GrammarCompiler
from triolet.engine.structured_outputs import StructuredOutputs

from .grammars import EOS, VOCAB_SIZE, accepted, allowed, encode, make_compiler, make_order


class Clock:
    """Goes on by so much between the beginning and the end of a piece of work."""

    def __init__(self, work_s: float) -> None:
        self.now, self.work_s, self.asked = 0.0, work_s, 0

    def __call__(self) -> float:
        self.asked += 1
        self.now += self.work_s * (self.asked % 2 == 0)
        return self.now


def timed(wanted: StructuredOutputs, work_s: float, ignored: frozenset[int]) -> MatchedGrammar:
    """A grammar each of whose masks and tokens takes so long."""
    matcher = make_compiler().compile(*make_order(wanted)).matcher
    return MatchedGrammar(matcher, ignored, clock=Clock(work_s))


def is_terminated(grammar: MatchedGrammar) -> bool:
    """Asked anew each time; mypy takes a property for a constant."""
    return grammar.is_terminated


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler()


TEXTS = [
    (StructuredOutputs.regex("[0-9]{3}"), "127"),
    (StructuredOutputs.choice(["red", "green"]), "green"),
    (
        StructuredOutputs.json({"type": "object", "properties": {"a": {"type": "null"}}}),
        '{"a":null}',
    ),
    (StructuredOutputs.grammar('start: "x" "y"*'), "xyy"),
]


@pytest.mark.parametrize(("wanted", "text"), TEXTS, ids=lambda value: str(value)[:30])
def test_each_token_of_a_match_is_allowed_before_it_comes(
    compiler: GrammarCompiler, wanted: StructuredOutputs, text: str
) -> None:
    grammar = compiler.compile(*make_order(wanted))
    for token_id in accepted(grammar, text):
        assert token_id in allowed(grammar)
        assert not is_terminated(grammar)
    assert EOS in allowed(grammar), "it may end here"


def test_the_end_is_allowed_only_where_the_output_may_end(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(*make_order(StructuredOutputs.regex("[0-9]{2,3}")))
    ends = []
    for _ in accepted(grammar, "12"):
        ends.append(EOS in allowed(grammar))
    assert ends == [False, False]
    assert EOS in allowed(grammar)
    assert not is_terminated(grammar)
    list(accepted(grammar, "3"))
    assert is_terminated(grammar)
    assert allowed(grammar) == {EOS}


def test_an_end_that_is_ignored_is_never_allowed(compiler: GrammarCompiler) -> None:
    order = make_order(StructuredOutputs.grammar('start: /[0-9]/ ("a" | "b")?'), eos=())
    grammar = compiler.compile(*order)
    for _ in accepted(grammar, "1"):
        pass
    assert EOS not in allowed(grammar)
    assert not is_terminated(grammar)
    list(accepted(grammar, "b"))
    assert is_terminated(grammar)
    assert not grammar.accept(EOS)


def test_what_may_not_come_is_refused_for_good(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(*make_order(StructuredOutputs.regex("[0-9]+")))
    assert grammar.failure == ""
    assert not grammar.accept(encode("a")[0])
    assert "doesn't satisfy the grammar" in grammar.failure
    assert not grammar.accept(encode("1")[0])
    assert not is_terminated(grammar)
    assert allowed(grammar) == set()


def test_at_a_limit_nothing_is_allowed_not_even_the_end(compiler: GrammarCompiler) -> None:
    wide = json.dumps({"properties": {f"p{i}": {} for i in range(1500)}, "type": "object"})
    wanted = StructuredOutputs.grammar(f"start: /[0-9]{{8}}/ x\nx: %json {wide}")
    grammar = compiler.compile(*make_order(wanted))
    for token_id in encode("12345678{"):
        if not grammar.accept(token_id):
            break
    assert allowed(grammar) == set()
    assert "items" in grammar.failure
    assert not grammar.accept(EOS)
    assert not is_terminated(grammar)


def test_a_mask_is_a_function_of_the_tokens(compiler: GrammarCompiler) -> None:
    wanted = StructuredOutputs.json_object()
    order = make_order(wanted, output=tuple(encode('{"name": ["a", 1')))
    first, again = compiler.compile(*order), make_compiler().compile(*order)
    assert allowed(first) == allowed(again)
    row = bytearray(mask_bytes(VOCAB_SIZE))
    first.fill_mask(memoryview(row))
    before = bytes(row)
    first.fill_mask(memoryview(row))
    assert bytes(row) == before


@pytest.mark.parametrize("ignored", [frozenset[int](), frozenset({EOS})])
def test_one_that_takes_too_long_allows_nothing_more(ignored: frozenset[int]) -> None:
    """Each token costs twice what it is given, so the spare time lasts for so many."""
    grammar = timed(StructuredOutputs.grammar('start: ("a" "a")*'), TOKEN_S, ignored)
    [letter] = encode("a")
    taken = 0
    while allowed(grammar):
        assert not grammar.failure
        assert grammar.accept(letter)
        taken += 1
    assert taken == pytest.approx(SPARE_S / TOKEN_S, abs=2)
    assert grammar.failure == TOO_SLOW
    assert not grammar.accept(letter)
    assert not is_terminated(grammar), "it was cut short"


def test_one_that_takes_its_time_goes_on() -> None:
    grammar = timed(StructuredOutputs.regex("a*"), TOKEN_S / 2.1, frozenset())
    [letter] = encode("a")
    for _ in range(int(3 * SPARE_S / TOKEN_S)):
        assert letter in allowed(grammar)
        assert grammar.accept(letter)


def test_a_grammar_that_can_be_read_in_many_ways_ends_its_request(
    compiler: GrammarCompiler,
) -> None:
    """Unbounded, its masks would take seconds before it is through."""
    wanted = StructuredOutputs.grammar("start: e\ne: e e | e e e | /[a-z]/")
    grammar = compiler.compile(*make_order(wanted))
    [letter] = encode("a")
    for _ in range(200):
        if not allowed(grammar):
            break
        grammar.accept(letter)
    assert grammar.failure == TOO_SLOW or "oo many items" in grammar.failure
