"""Compiling off the step loop: replays, copies, what cannot be compiled, and the task."""

import pathlib

import pytest

from triolet.engine.errors import InvalidParameter
from triolet.engine.process.grammar_compiler import KEPT_MAX, GrammarCompiler
from triolet.engine.structured_outputs import StructuredOutputs

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
