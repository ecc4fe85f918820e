"""Formats in which models write tool calls: how each is known, parsed, and forced by a grammar.

Sans-IO: a chat template's text in, a format out. A template names no format, so it is known by the
words that only its family's templates have. The grammars are llguidance's Lark; marks that are
special tokens of the model are written in them by id, as no text matches those.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

from ...engine.grammar.text import json_term
from . import harmony, xml_calls
from .tool_calls import CallParser, JsonCallParser, JsonCalls, Tool

_XML_VALUE_END = f"\n{xml_calls.VALUE_END}\n"
# The Lark term of a mark.
Mark = Callable[[str], str]
_ARGUMENTS = r'\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
_QUOTED = (
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\.)*")' + _ARGUMENTS
)
# The rest of the call's own object.
_OBJECT_END = r'(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}'
HERMES = JsonCalls(
    "<tool_call>", "</tool_call>", re.compile(_QUOTED), re.compile(r"(?s:.*?)</tool_call>")
)
LLAMA = JsonCalls(
    "<|python_tag|>",
    "",
    re.compile(_QUOTED),
    re.compile(_OBJECT_END),
    separator=";",
    is_bare=True,
)
MISTRAL_LIST = JsonCalls(
    "[TOOL_CALLS]",
    "",
    re.compile(r"\s*\[?" + _QUOTED),
    re.compile(_OBJECT_END),
    separator=",",
    terminator="]",
)
MISTRAL = JsonCalls(
    "[TOOL_CALLS]",
    "",
    re.compile(r"\s*([a-zA-Z0-9_.-]+)\s*(?:\[CALL_ID\]\s*\w*\s*)?\[ARGS\]\s*(?=\{)"),
    re.compile(""),
    begun=re.compile(r"\s*[a-zA-Z0-9_.-]*\s*(?:\[|$)"),
)


class ToolFormat(Protocol):
    """Format in which a family of models writes calls."""

    @property
    def name(self) -> str:
        """By which it is documented."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be special tokens of a model, without which nothing can be read."""

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        """Parser of one answer, which may call these tools."""

    def forced(self, tools: Sequence[Tool], *, calls_max: int, mark: Mark) -> str:
        """The Lark grammar of one to `calls_max` calls and nothing else."""

    def strict(self, tools: Sequence[Tool], *, mark: Mark) -> str:
        """The Lark grammar of any text in which what opens a call goes on as one."""


@attrs.frozen
class JsonToolFormat:
    """Calls with JSON arguments: `before`, the name, `between`, the arguments, `after`, a closing.

    `outer` stands around all calls, `joint` between two; a format that is `is_single` has one call.
    """

    name: str
    calls: JsonCalls
    before: str
    between: str
    after: str
    outer: tuple[str, str] = ("", "")
    joint: str = ""
    # Each call has the opening; otherwise all calls together have it, or none.
    opens_each: bool = False
    is_single: bool = False
    more_marks: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.calls.opening, self.calls.closing, *self.more_marks)

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return JsonCallParser(self.calls)

    def forced(self, tools: Sequence[Tool], *, calls_max: int, mark: Mark) -> str:
        opening = "" if self.calls.is_bare else mark(self.calls.opening)
        each = opening if self.opens_each else ""
        more = 0 if self.is_single else calls_max - 1
        next_call = _terms(quoted(self.joint), each, "call")
        begin, end = map(quoted, self.outer)
        start = _terms(opening, begin, "call", f"({next_call}){{0,{more}}}" if more else "", end)
        return f"start: {start}\n{self._rules(tools, mark)}"

    def strict(self, tools: Sequence[Tool], *, mark: Mark) -> str:
        rules = self._rules(tools, mark)
        if self.calls.is_bare:
            return f"start: call | tail\ntail: /([^{{\\s](.|\\n)*)?/\n{rules}"
        begin, end = map(quoted, self.outer)
        call = _terms(begin, "call", end)
        return f"{calls_in_text(self.calls.opening, call, mark)}\n{rules}"

    def _rules(self, tools: Sequence[Tool], mark: Mark) -> str:
        lines = ["call: " + " | ".join(f"call_{place}" for place in range(len(tools)))]
        for place, tool in enumerate(tools):
            name = json.dumps(tool.name) if self.before else tool.name
            head = _terms(quoted(self.before + name), mark(self.between))
            end = _terms(quoted(self.after), mark(self.calls.closing))
            lines.append(f"call_{place}: {_terms(head, f'arguments_{place}', end)}")
            lines.append(f"arguments_{place}: {_arguments_term(tool)}")
        return "\n".join(lines)


def _arguments_term(tool: Tool) -> str:
    """The term of a call's arguments: an object, whatever the function's parameters say.

    Schemas often have no type (`{}` for a function without parameters), allow null as well, or
    refer to another one; the parsers read objects alone.
    """
    return json_term({**tool.parameters, "type": "object"})


def text_until(name: str, end: str, mark: Mark) -> str:
    """The Lark rule of this name: any text up to a mark, and the mark."""
    if mark(end) != quoted(end):
        return f"{name}: {name}_text {mark(end)}\n{name}_text: /(.|\\n)*/"
    # A lazy match ends with the mark only where that belongs to it.
    return f"{name}[lazy]: /(.|\\n)*?{re.escape(end).replace('/', chr(92) + '/')}/"


def calls_in_text(opening: str, call: str, mark: Mark) -> str:
    """The Lark rule `start` of any text in which what opens a call goes on as one."""
    return f"start: (text {call})* tail\n{text_until('text', opening, mark)}\ntail: /(.|\\n)*/"


@attrs.frozen
class XmlToolFormat:
    """Qwen3-Coder's."""

    name: str = "Qwen3-Coder"
    marks: tuple[str, ...] = (xml_calls.OPENING, xml_calls.CLOSING)

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return xml_calls.XmlCallParser(tools)

    def forced(self, tools: Sequence[Tool], *, calls_max: int, mark: Mark) -> str:
        call = f"{mark(xml_calls.OPENING)} body"
        more = f' ("\\n" {call}){{0,{calls_max - 1}}}' if calls_max > 1 else ""
        return f"start: {call}{more}\n{_xml_rules(tools, mark)}"

    def strict(self, tools: Sequence[Tool], *, mark: Mark) -> str:
        return f"{calls_in_text(xml_calls.OPENING, 'body', mark)}\n{_xml_rules(tools, mark)}"


def _xml_rules(tools: Sequence[Tool], mark: Mark) -> str:
    bodies, rules = list[str](), [r"free[lazy]: /(.|\n)*?<\/parameter>/"]
    for place, tool in enumerate(tools):
        head, end = map(quoted, (f"\n<function={tool.name}>\n", "</function>\n"))
        for number, shape in enumerate(xml_calls.shapes_of(tool.parameters)):
            terms = list[str]()
            for name, schema in shape.properties.items():
                rule = f"argument_{place}_{number}_{len(terms)}"
                terms.append(rule if name in shape.required else f"{rule}?")
                tag = quoted(f"<parameter={name}>\n")
                rules.append(f"{rule}: {tag} {_xml_value(tool, schema)}")
            bodies.append(_terms(head, *terms, end, mark(xml_calls.CLOSING)))
    return "\n".join([f"body: {' | '.join(bodies)}", *rules])


def _xml_value(tool: Tool, schema: object) -> str:
    """The rest of an argument, behind its tag. Strings are written bare, whatever else may come."""
    types = xml_calls.types_of(schema, tool.parameters)
    choices = xml_calls.choices_of(schema, tool.parameters)
    if choices is not None and types is not None and "string" in types:
        texts = [each if isinstance(each, str) else json.dumps(each) for each in choices]
        return f"({' | '.join(map(quoted, texts))}) {quoted(_XML_VALUE_END)}"
    if types is None or "string" in types:
        return r'free "\n"'
    assert isinstance(schema, dict)
    given = tool.parameters
    shared: dict[str, Any] = {n: given[n] for n in ("$defs", "definitions") if n in given}
    return f"{json_term({**shared, **schema})} {quoted(_XML_VALUE_END)}"


@attrs.frozen
class HarmonyToolFormat:
    """Format of gpt-oss; a call ends its answer."""

    name: str = "gpt-oss"
    marks: tuple[str, ...] = harmony.MARKS

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        """Parser that reads the reasoning as well."""
        return harmony.HarmonyParser(calls=bool(tools))

    def forced(self, tools: Sequence[Tool], *, calls_max: int, mark: Mark) -> str:
        """Grammar of one call, and reasoning before it."""
        return f"start: analysis? call\n{_harmony_rules(tools, mark)}"

    def strict(self, tools: Sequence[Tool], *, mark: Mark) -> str:
        final = f'{mark(harmony.CHANNEL)} "final" {mark(harmony.MESSAGE)} tail'
        rules = f"tail: /(.|\\n)*/\n{_harmony_rules(tools, mark)}"
        return f"start: analysis? (call | {final})\n{rules}"


def analysis_rules(mark: Mark) -> str:
    """The rule `analysis`: reasoning, and all that leads to the next message."""
    head = f'{mark(harmony.CHANNEL)} "analysis" {mark(harmony.MESSAGE)}'
    rule = f'analysis: {head} thought {mark(harmony.START)} "assistant"'
    return f"{rule}\n{text_until('thought', harmony.END, mark)}"


def _harmony_rules(tools: Sequence[Tool], mark: Mark) -> str:
    head = f'{mark(harmony.CHANNEL)} "commentary to=functions."'
    between = f'" " {mark(harmony.CONSTRAIN)} "json" {mark(harmony.MESSAGE)}'
    bodies, arguments = list[str](), list[str]()
    for place, tool in enumerate(tools):
        bodies.append(f"{quoted(tool.name)} {between} arguments_{place}")
        arguments.append(f"arguments_{place}: {_arguments_term(tool)}")
    called = f"call: {head} ({' | '.join(bodies)})"
    return "\n".join([analysis_rules(mark), called, *arguments])


_NAME = '{"name": '
HARMONY_FORMAT = HarmonyToolFormat()
XML_FORMAT = XmlToolFormat()
HERMES_FORMAT = JsonToolFormat(
    "Hermes",
    HERMES,
    "\n" + _NAME,
    ', "arguments": ',
    "}\n",
    joint="\n",
    opens_each=True,
)
LLAMA_FORMAT = JsonToolFormat("Llama 3", LLAMA, _NAME, ', "parameters": ', "}", is_single=True)
MISTRAL_LIST_FORMAT = JsonToolFormat(
    "Mistral", MISTRAL_LIST, _NAME, ', "arguments": ', "}", outer=("[", "]"), joint=", "
)
MISTRAL_FORMAT = JsonToolFormat(
    "Mistral", MISTRAL, "", "[ARGS]", "", opens_each=True, more_marks=("[ARGS]", "[CALL_ID]")
)


# Each with the words by which it is known, and a word that it is not known with; the first one
# counts. Seed-OSS has Qwen3-Coder's tags in one of its own, MiniMax-M3 and GLM have other calls in
# `<tool_call>`, and Apriel speaks of that but writes `<tool_calls>`.
_KNOWN: tuple[tuple[ToolFormat, tuple[str, ...], str], ...] = (
    (HARMONY_FORMAT, ("<|channel|>", "<|message|>"), ""),
    (XML_FORMAT, ("<tool_call>", "<function=", "<parameter="), ""),
    (HERMES_FORMAT, ("<tool_call>", '"arguments"'), "<tool_calls>"),
    (MISTRAL_FORMAT, ("[TOOL_CALLS]", "[ARGS]"), ""),
    (MISTRAL_LIST_FORMAT, ("[TOOL_CALLS]",), ""),
    (LLAMA_FORMAT, ("ipython", '"parameters"'), ""),
)


def tool_format_of(template: str) -> ToolFormat | None:
    """The format that a chat template shows to its model; None for one that is not read here."""
    unescaped = template.replace('\\"', '"')
    for found, words, other in _KNOWN:
        if all(word in unescaped for word in ("tools", *words)):
            return None if other and other in unescaped else found
    return None


def tool_format_names() -> str:
    """Names of the formats that are read, for a sentence."""
    return ", ".join(dict.fromkeys(found.name for found, _, _ in _KNOWN))


def _terms(*terms: str) -> str:
    return " ".join(filter(None, terms))


def quoted(text: str) -> str:
    """A text as a term of a grammar, if it has one."""
    return json.dumps(text) if text else ""
