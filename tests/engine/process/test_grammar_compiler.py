"""Compiling off the step loop: replays, copies, what cannot be compiled, and the task."""

import gc
import pathlib
import weakref
from typing import cast

import attrs
import pytest
import trio

from triolet.engine.config import EngineSettings
from triolet.engine.core.grammar import RequestGrammar
from triolet.engine.core.request import Request
from triolet.engine.errors import InvalidParameter
from triolet.engine.process.grammar_compiler import (
    KEPT_MAX,
    GrammarCompiler,
    run_grammar_compiler,
)
from triolet.engine.process.server import EngineServer
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.structured_outputs import StructuredOutputs

from ..core.driver import new_request
from ..grammar.grammars import EOS, VOCAB_SIZE, allowed, encode, make_compiler, make_order

WIDE = StructuredOutputs.json(
    {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer"} for i in range(1500)},
        "additionalProperties": False,
    }
)
DIGITS = StructuredOutputs.regex("[0-9]{2,4}")


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler()


def test_requests_get_copies_of_their_own(compiler: GrammarCompiler) -> None:
    first = compiler.compile(*make_order(DIGITS))
    for token_id in encode("12"):
        assert first.accept(token_id)
    second = compiler.compile(*make_order(DIGITS))
    assert EOS in allowed(first)
    assert EOS not in allowed(second)


def test_a_replay_has_accepted_its_output(compiler: GrammarCompiler) -> None:
    output = tuple(encode("1234"))
    grammar = compiler.compile(*make_order(DIGITS, output=output))
    assert grammar.is_terminated
    with pytest.raises(InvalidParameter, match="output token 0 does not match"):
        compiler.compile(*make_order(DIGITS, output=tuple(encode("a"))))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (StructuredOutputs.json({"not": {}}), "`not`"),
        (StructuredOutputs.json({"multipleOf": 1_000_003}), "multipleOf"),
        (WIDE, "items"),
        (StructuredOutputs.json({"$ref": "#"}), "nothing|NoExtension"),
    ],
    ids=["unserved", "bound", "wide", "endless"],
)
def test_what_cannot_be_compiled(
    compiler: GrammarCompiler, wanted: StructuredOutputs, reason: str
) -> None:
    with pytest.raises(InvalidParameter, match=reason) as caught:
        compiler.compile(*make_order(wanted))
    assert caught.value.parameter == "structured_outputs"
    compiler.compile(*make_order(DIGITS))


def test_kept_ones_are_bounded(compiler: GrammarCompiler) -> None:
    for count in range(KEPT_MAX + 5):
        compiler.compile(*make_order(StructuredOutputs.regex(f"a{{{count}}}b")))
    assert len(compiler._kept) == KEPT_MAX


@pytest.mark.parametrize("tokenizer", [None, "{}", "not json"])
def test_a_folder_without_a_readable_tokenizer(
    tmp_path: pathlib.Path, tokenizer: str | None
) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 8, "max_position_embeddings": 9}')
    if tokenizer is not None:
        (tmp_path / "tokenizer.json").write_text(tokenizer)
    compiler = GrammarCompiler(tmp_path, VOCAB_SIZE)
    compiler.load()
    with pytest.raises(InvalidParameter, match="no tokenizer"):
        compiler.compile(*make_order(DIGITS))


@attrs.define(eq=False)
class OrderingServer:
    """Server and core of one list of orders."""

    orders: list[Request]
    settings: EngineSettings = attrs.field(factory=lambda: EngineSettings(model="m"))
    vocab_size: int = VOCAB_SIZE
    compiled: trio.Event = attrs.field(factory=trio.Event)

    @property
    def core(self) -> "OrderingServer":
        return self

    @property
    def limits(self) -> "OrderingServer":
        return self

    async def wait_grammar_orders(self) -> None:
        if not self.orders:
            self.compiled.set()
            await trio.sleep_forever()

    def take_grammar_orders(self) -> list[Request]:
        orders, self.orders = self.orders, []
        return orders

    def grammar_compiled(self, request: Request, grammar: RequestGrammar) -> None:
        request.grammar = grammar

    def notify(self) -> None:
        pass


async def test_a_grammar_is_freed_with_its_request(compiler: GrammarCompiler) -> None:
    """At once, without the collector, which an engine runs seldom: 70 KiB with each form."""
    sampling = SamplingParams(max_tokens=9, structured_outputs=DIGITS)
    requests = [new_request(f"r{number}", sampling=sampling) for number in range(2)]
    server = OrderingServer(list(requests))
    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            makes = lambda *_: compiler  # noqa: E731
            await nursery.start(run_grammar_compiler, cast(EngineServer, server), None, makes)
            with trio.fail_after(20):
                await server.compiled.wait()
            first = requests[0]
            assert first.grammar is not None
            assert first.grammar.accept(encode("1")[0])  # it says what it is at
            ended = weakref.ref(first), weakref.ref(first.grammar)
            del first, requests[0]
            assert [each() for each in ended] == [None, None]
            nursery.cancel_scope.cancel("the test is over")
    finally:
        gc.enable()
