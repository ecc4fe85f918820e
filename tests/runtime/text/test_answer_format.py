"""An assistant's turn, rendered by a template and cut anywhere, is read back as it was."""

import functools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from triolet.engine.grammar.text import check_grammar, grammar_text
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.runtime.config import REASONING_NAMES
from triolet.runtime.text.answer_format import AnswerFormat, AnswerParser
from triolet.runtime.text.chat_template import ChatTemplate
from triolet.runtime.text.reasoning import REASONING_MARKS
from triolet.runtime.text.tool_calls import TextPiece, Tool
from triolet.runtime.text.tool_formats import HERMES_FORMAT, tool_format_of

from .turns import ASKED, CALLS, CUTS, TOOLS, WORDS, Turn, bytes_of, cut, loaded, read

FOLDER = pathlib.Path(__file__).parent / "templates"
FAMILIES = ["hermes", "qwen3_coder", "llama3", "mistral_list", "mistral", "gpt_oss"]
# Which of them also have reasoning, and an answer beside calls; and how many calls at most.
REASONING, TEXT_BESIDE_CALLS = (
    ("hermes", "mistral", "gpt_oss"),
    ("hermes", "qwen3_coder", "mistral"),
)
SINGLE = ("llama3", "gpt_oss")
ENDS = ("<|im_end|>\n", "<|eot_id|>", "</s>", "<|call|>", "<|return|>")


@functools.cache
def template_of(family: str) -> ChatTemplate:
    return loaded((FOLDER / f"{family}.jinja").read_text())


def format_of(family: str) -> AnswerFormat:
    source = (FOLDER / f"{family}.jinja").read_text()
    return AnswerFormat.of({"chat_template": source})


@functools.cache
def prompt_of(family: str) -> str:
    return template_of(family).render([ASKED], tools=[tool.for_template() for tool in TOOLS])


def written(family: str, turn: Turn) -> str:
    """What the model is shown to have written."""
    shown = [tool.for_template() for tool in TOOLS]
    template = template_of(family)
    before = prompt_of(family)
    after = template.render([ASKED, turn.message], tools=shown, add_generation_prompt=False)
    assert after.startswith(before)
    text = after.removeprefix(before)
    end = next(end for end in ENDS if text.endswith(end))
    return text.removesuffix(end)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=40)  # as many again for each original template
@given(reasoning=WORDS, text=WORDS, calls=CALLS, cuts=CUTS)
def test_a_rendered_turn_is_read_back_however_it_is_cut(
    family: str, reasoning: str, text: str, calls: list[Any], cuts: list[int]
) -> None:
    turn = Turn(reasoning if family in REASONING else "", text, tuple(calls))
    if family in SINGLE:
        turn = attrs.evolve(turn, calls=turn.calls[:1])
    if turn.calls and family not in TEXT_BESIDE_CALLS:
        turn = attrs.evolve(turn, text="")
    shown = written(family, turn)
    answer_format = format_of(family)
    assert read(answer_format.parser(TOOLS, None, is_open=False), cut(shown, cuts)) == turn


PARTS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "<parameter=a>"),
    *("</parameter>", "</function>", "[TOOL_CALLS]", "[ARGS]", "[", "]", ",", ";", "f", "\n"),
    *("<|channel|>", "<|message|>", "analysis", "<|end|>", "<|start|>", "to=functions.f", " "),
    *('{"name": "f", "arguments": {"a": 1}}', '{"name": "f", "parameters": {', "}", '"', "<"),
]
NOISE = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=10).map("".join)


@pytest.mark.parametrize("family", FAMILIES)
@given(text=NOISE, cuts=CUTS, is_open=st.booleans(), with_tools=st.booleans())
def test_cuts_change_nothing_and_nothing_is_said_twice(
    family: str, text: str, cuts: list[int], is_open: bool, with_tools: bool
) -> None:
    tools = TOOLS if with_tools else []
    answer_format = format_of(family)
    parsers = [answer_format.parser(tools, None, is_open=is_open) for _ in range(2)]
    if parsers[0] is None:
        assert not with_tools
        return
    whole, pieces = (
        events_of(p, each) for p, each in zip(parsers, ([text], cut(text, cuts)), strict=True)
    )
    assert whole == pieces


def events_of(parser: AnswerParser | None, pieces: Sequence[str]) -> list[object]:
    """Events with neighbours of one kind merged."""
    assert parser is not None
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    merged: list[tuple[object, str]] = []
    for event in events:
        kind = (type(event), getattr(event, "index", None), getattr(event, "name", None))
        text = getattr(event, "text", "")
        if merged and merged[-1][0] == kind and text:
            merged[-1] = (kind, merged[-1][1] + text)
        else:
            merged.append((kind, text))
    return list(merged)


# ---- what was written otherwise than by its template

OTHERWISE: list[tuple[str, str, Turn]] = [
    (
        "llama3",
        '{"type": "function", "name": "clock", "parameters": {}}',
        Turn(calls=(("clock", {}),)),
    ),
    ("llama3", '<|python_tag|>{"name": "clock", "parameters": {}}', Turn(calls=(("clock", {}),))),
    (
        "llama3",
        '{"name": "clock", "parameters": {}}; {"name": "f", "parameters": {"a": 1}}',
        Turn(calls=(("clock", {}), ("f", {"a": 1}))),
    ),
    ("llama3", '{"parameters": {}, "name": "clock"}', Turn(calls=(("clock", {}),))),
    ("llama3", '{"city": "Oslo"}', Turn(text='{"city": "Oslo"}')),
    ("llama3", 'See {"name": "clock"}', Turn(text='See {"name": "clock"}')),
    ("mistral_list", '[TOOL_CALLS] [{"arguments": {}, "name": "f"}', Turn(calls=(("f", {}),))),
    ("mistral", "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}", Turn(calls=(("f", {}),))),
    ("qwen3_coder", "<function=clock>\n</function>", Turn(calls=(("clock", {}),))),
    ("qwen3_coder", "a <function> b", Turn(text="a <function> b")),
    ("qwen3_coder", "<tool_call>none</tool_call>", Turn(text="<tool_call>none</tool_call>")),
    (
        "gpt_oss",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
        Turn("Hm.", calls=(("f", {"a": 1}),)),
    ),
    ("gpt_oss", "Plain.", Turn(text="Plain.")),
    ("hermes", "<think>\nHm.\n</think>\n\nYes.", Turn("Hm.", "Yes.")),
    ("hermes", "<think>Hm", Turn("Hm")),
    ("hermes", "Yes, <think>.", Turn(text="Yes, <think>.")),
]


@pytest.mark.parametrize(("family", "text", "turn"), OTHERWISE, ids=lambda value: str(value)[:30])
def test_what_models_write_beside_their_template(family: str, text: str, turn: Turn) -> None:
    answer_format = format_of(family)
    for pieces in ([text], [*text]):
        assert read(answer_format.parser(TOOLS, None, is_open=False), pieces) == turn


def test_a_prompt_that_opens_the_reasoning_is_known_by_its_end() -> None:
    answer_format = format_of("deepseek_r1")
    prompt = template_of("deepseek_r1").render([ASKED])
    assert answer_format.is_opened([*prompt.encode()], bytes_of)
    assert read(answer_format.parser((), None, is_open=True), "Hm.</think>Yes.") == Turn(
        "Hm.", "Yes."
    )
    assert not answer_format.is_opened([*b"<think>\n\n</think>\n\n"], bytes_of)
    assert not AnswerFormat().is_opened([*b"<think>"], bytes_of)


def test_tokens_of_the_reasoning_are_counted() -> None:
    parser = format_of("hermes").parser((), None, is_open=False)
    assert parser is not None
    for token in ["<think>", "\n", "Hm", ".", "</think>", "\n\n", "Yes", "."]:
        parser.push(token)
    assert parser.reasoning_tokens == 5


def test_calls_beyond_the_allowed_are_not_said() -> None:
    turn = Turn(text="So.", calls=(("clock", {}), ("clock", {})))
    parser = format_of("hermes").parser(TOOLS, 1, is_open=False)
    assert read(parser, [*written("hermes", turn)]) == attrs.evolve(turn, calls=turn.calls[:1])


# ---- how it is found


def test_a_template_says_its_format_or_that_it_has_none() -> None:
    names = {
        family: tool_format_of((FOLDER / f"{family}.jinja").read_text()) for family in FAMILIES
    }
    assert all(names.values())
    assert not format_of("deepseek_r1").tools
    assert "format that is not supported" in format_of("deepseek_r1").no_tools_reason
    plain = AnswerFormat.of({"chat_template": "{{ messages }}"})
    assert plain.no_tools_reason == "the chat template of this model shows no tools"
    assert AnswerFormat.of({"chat_template": None}).no_tools_reason.endswith("has no chat template")


@pytest.mark.parametrize(
    "words",
    [
        "<tool_call>f<arg_key>",
        '<tool_call><invoke name="f">',
        "<seed:tool_call><function=f><parameter=a>",
        'in <tool_call></tool_call>: "arguments"; <tool_calls>[{',
    ],
)
def test_words_that_several_families_have_are_not_enough(words: str) -> None:
    assert tool_format_of(f"{{% if tools %}}{words}{{% endif %}}") is None


def test_words_in_a_text_of_the_template_are_known() -> None:
    source = r"{{ '<tool_call>{\"name\": n, \"arguments\": a}' if tools }}"
    assert tool_format_of(source) is HERMES_FORMAT


def test_reasoning_can_be_chosen_and_switched_off() -> None:
    source = (FOLDER / "hermes.jinja").read_text()
    info: dict[str, Any] = {"chat_template": source}
    assert AnswerFormat.of(info).reasoning is REASONING_MARKS["think"]
    assert AnswerFormat.of(info, "seed").reasoning is REASONING_MARKS["seed"]
    assert {*REASONING_MARKS, "harmony"} == {*REASONING_NAMES}
    off = AnswerFormat.of(info, "none")
    assert off.parser((), None, is_open=False) is None
    assert not off.parts_reasoning
    added = {"1": {"content": "<think>", "special": False}}
    added["2"] = {"content": "</think>", "special": False}
    tokens = AnswerFormat.of({"chat_template": "{{ messages }}", "added_tokens_decoder": added})
    assert tokens.reasoning is REASONING_MARKS["think"]


# ---- grammars


BYTES = LLTokenizer("byte")


def matcher_of(wanted: StructuredOutputs) -> LLMatcher:
    check_grammar(wanted)
    return LLMatcher(BYTES, grammar_text(wanted), log_level=0)


def matches(wanted: StructuredOutputs, text: str) -> bool:
    matcher = matcher_of(wanted)
    return bool(matcher.consume_tokens(list(text.encode()))) and bool(matcher.is_accepting())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("days", [0, 42])
def test_a_forced_call_is_read_back(family: str, days: int) -> None:
    """The grammar takes a call as the model writes it, and nothing else."""
    answer_format = format_of(family)
    wanted = StructuredOutputs.grammar(answer_format.forced(TOOLS, calls_max=2))
    turn = Turn(calls=(("get_weather", {"city": "Oslo", "days": days}),))
    text = forced_text(family, turn)
    assert matches(wanted, text)
    assert read(answer_format.parser(TOOLS, None, is_open=False), [text]) == turn
    assert not matches(wanted, text.replace("get_weather", "get_whether"))
    assert not matches(wanted, "It is warm.")


WITH_A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
DEFINED = {"$defs": {"A": WITH_A}}
# Parameters that do not say that arguments are an object, and whether `{}` matches them.
UNTYPED: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"$schema": "https://json-schema.org/draft/2020-12/schema"}, True),
    ({"properties": {"a": {"type": "integer"}}}, True),
    ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, False),
    ({"required": []}, True),
    ({"type": ["object", "null"]}, True),
    ({"type": "string"}, True),
    ({**DEFINED, "$ref": "#/$defs/A"}, False),
    ({**DEFINED, "anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}, False),
    ({**DEFINED, "oneOf": [{"type": "null"}, {"$ref": "#/$defs/A"}]}, False),
    ({"enum": [None, "a", {"a": 1}]}, False),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("parameters", "may_be_empty"), UNTYPED, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("strict", [False, True])
def test_arguments_are_an_object_whatever_the_parameters_say(
    family: str, parameters: dict[str, Any], may_be_empty: bool, strict: bool
) -> None:
    """The grammar allows no arguments that the parser does not read as a call."""
    answer_format, tools = format_of(family), [Tool("get_weather", parameters)]
    made = answer_format.strict(tools) if strict else answer_format.forced(tools, calls_max=1)
    wanted = StructuredOutputs.grammar(made)
    if family == "qwen3_coder":  # whose arguments are an object by their tags
        check_grammar(wanted)
        return
    text = forced_text(family, Turn(calls=(("get_weather", {}),)))
    assert text.count("{}") == 1
    for arguments in ({}, {"a": 1}):
        turn = Turn(calls=(("get_weather", arguments),))
        called = text.replace("{}", json.dumps(arguments))
        assert matches(wanted, called) == (bool(arguments) or may_be_empty)
        assert read(answer_format.parser(tools, None, is_open=False), [called]) == turn
    for other in ("null", '"a"', "[]", "1", "true"):
        assert not matches(wanted, text.replace("{}", other))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forced_call_that_is_cut_is_no_text(family: str) -> None:
    """Wherever it is cut; and where none is forced, behind its opening."""
    text = forced_text(family, Turn(calls=(("get_weather", {"city": "Oslo"}),)))
    for end in range(len(text)):
        for pieces in ([text[:end]], [*text[:end]]):
            parser = format_of(family).parser(TOOLS, None, is_open=False, is_forced=True)
            assert read_text(parser, pieces) == ""
    parser = format_of(family).parser(TOOLS, None, is_open=False)
    assert read_text(parser, [text[: text.index("get_w") + 3]]) in ("", '{"name": "get')


def test_arguments_of_every_family_escape_a_raw_line_break() -> None:
    """Qwen3-Coder's are written by the parser itself."""
    for family in set(FAMILIES) - {"qwen3_coder"}:
        turn = Turn(calls=(("get_weather", {"city": "a\n\tb"}),))
        text = forced_text(family, turn)
        assert r"a\n\tb" in text
        raw = text.replace(r"a\n\tb", "a\n\tb")
        for pieces in ([raw], [*raw]):
            assert read(format_of(family).parser(TOOLS, None, is_open=False), pieces) == turn


def read_text(parser: AnswerParser | None, pieces: list[str]) -> str:
    assert parser is not None
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    return "".join(event.text for event in events if isinstance(event, TextPiece))


def forced_text(family: str, turn: Turn) -> str:
    text = written(family, turn).replace(', "id": "call00000"', "").lstrip("\n")
    if family == "gpt_oss":  # models write the recipient behind the channel
        begin = " to=functions.get_weather<|channel|>commentary json"
        model = "<|channel|>commentary to=functions.get_weather <|constrain|>json"
        text = text.replace(begin, model)
    return text


JSON_FORM = StructuredOutputs.json({"type": "object", "properties": {"a": {"type": "integer"}}})
OWN_RULES = StructuredOutputs.grammar('start: text\ntext: "a" answer\nanswer: /[b}]+/')
BEHIND: list[tuple[str, StructuredOutputs, bool, str, bool]] = [
    ("hermes", JSON_FORM, False, '<think>\nHm.\n</think>\n\n{"a": 1}', True),
    ("hermes", JSON_FORM, False, '{"a": 1}', True),
    ("hermes", JSON_FORM, False, 'Hm.</think>{"a": 1}', False),
    ("hermes", JSON_FORM, True, 'Hm.</think>{"a": 1}', True),
    ("hermes", JSON_FORM, True, '{"a": 1}', False),
    ("hermes", JSON_FORM, True, "Hm.</think>Yes", False),
    ("hermes", OWN_RULES, True, "Hm.</think>ab}", True),
    ("hermes", OWN_RULES, True, "Hm.</think>b", False),
    ("hermes", StructuredOutputs.choice(["yes", "no"]), True, "Hm.</think>\nno", True),
    ("hermes", StructuredOutputs.regex("[0-9]+"), False, "<think></think>12", True),
    ("llama3", JSON_FORM, False, '{"a": 1}', True),
    (
        "gpt_oss",
        JSON_FORM,
        False,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{}",
        True,
    ),
    ("gpt_oss", JSON_FORM, False, "<|channel|>final<|message|>{}", True),
    ("gpt_oss", JSON_FORM, False, "<|channel|>final<|message|>Yes", False),
]


@pytest.mark.parametrize(("family", "form", "is_open", "text", "is_good"), BEHIND, ids=str)
def test_a_form_begins_behind_the_reasoning(
    family: str, form: StructuredOutputs, is_open: bool, text: str, is_good: bool
) -> None:
    wanted = format_of(family).behind_reasoning(form, is_open=is_open)
    assert matches(wanted, text) == is_good


STRICT = [
    ("hermes", "So."),
    ("qwen3_coder", "So."),
    ("llama3", "So."),
    ("mistral", "So."),
    ("mistral_list", "So."),
    ("gpt_oss", "<|channel|>final<|message|>So."),
]


@pytest.mark.parametrize(("family", "answer"), STRICT)
def test_strict_calls_may_be_left_out_but_not_wrong(family: str, answer: str) -> None:
    wanted = StructuredOutputs.grammar(format_of(family).strict(TOOLS))
    text = forced_text(family, Turn(calls=(("get_weather", {"city": "Oslo"}),)))
    assert matches(wanted, answer)
    assert matches(wanted, text)
    assert not matches(wanted, text.replace("city", "town"))


@pytest.mark.parametrize(
    ("family", "is_special"),
    [
        *(("hermes", True), ("hermes", False), ("qwen3_coder", False)),
        *(("gpt_oss", True), ("mistral", True)),
    ],
)
def test_marks_that_are_tokens_are_taken_by_id(family: str, is_special: bool) -> None:
    """No text matches them; nor one that looks like a tag and is not special, as Qwen's are."""
    folder = bundled_model_folder()
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    plain = format_of(family)
    assert plain.tools is not None
    reasoning = () if plain.reasoning is None else attrs.astuple(plain.reasoning)
    marks = dict.fromkeys(mark for mark in (*reasoning, *plain.tools.marks) if mark)
    added = {mark: size + place for place, mark in enumerate(marks)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"] += [
        {"id": i, "content": mark, "special": is_special, **flags} for mark, i in added.items()
    ]
    decoder = {str(i): {"content": mark, "special": is_special} for mark, i in added.items()}
    source = (FOLDER / f"{family}.jinja").read_text()
    special = AnswerFormat.of({"chat_template": source, "added_tokens_decoder": decoder})
    assert (special.mark_ids, special.has_special_marks) == (added, is_special)
    call = StructuredOutputs.grammar(special.forced(TOOLS, calls_max=1))
    wanted = special.behind_reasoning(call, is_open=False, is_call=True)
    check_grammar(wanted)
    text = forced_text(family, Turn(calls=(("get_weather", {"city": "Oslo"}),)))
    ids = tokenizers.Tokenizer.from_str(json.dumps(tokenizer)).encode(
        text, add_special_tokens=False
    )
    model = LLTokenizer(json.dumps(tokenizer), n_vocab=size + len(added))
    matcher = LLMatcher(model, grammar_text(wanted), log_level=0)
    assert matcher.consume_tokens(ids.ids), matcher.get_error()
    assert matcher.is_accepting()
    assert not LLMatcher(
        model,
        grammar_text(StructuredOutputs.grammar(plain.forced(TOOLS, calls_max=1))),
        log_level=0,
    ).consume_tokens(ids.ids)
