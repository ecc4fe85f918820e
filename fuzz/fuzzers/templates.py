"""Fuzzes chat templates, random programs in the sandbox, with conversations of any shape.

Invariant: a template renders or is refused by name, within its limits, and reaches nothing. They
are those of a rendering in the event loop, which no trace function ends.
"""

import json
import pathlib
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import attrs

from ...runtime.errors import ChatTemplateBroken, ChatTemplateRefused, ChatTemplateTooCostly
from ...runtime.text.chat_template import ChatTemplate
from ...runtime.text.template_sandbox import INLINE
from ..doubles.served import BUNDLED
from ..drawing import ODD_VALUES, mutate, mutate_json
from ..fuzzer import Fuzzer, bare

TEXT_CHARACTERS_MAX = INLINE.characters
MESSAGES = [
    {"role": "system", "content": "a"},
    {"role": "user", "content": "b {{ 1 }}"},
    {"role": "assistant", "content": "c"},
]
# Ways out of a sandbox that others have been caught by; each must give nothing of the host.
ESCAPES = (
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ dict.fromkeys.__func__ }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ lipsum.__globals__['os'].getpid() }}",
    "{{ self.__init__.__globals__ }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ ''|attr('__class__') }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ '%s'|format(joiner.__init__) }}",
    "{% set x = messages.append(1) %}{{ messages|length }}",
    "{% set n = namespace(__class__=1) %}{{ n.__class__ }}",
    "{% include 'config.json' %}",
    "{% import '/etc/passwd' as p %}{{ p }}",
    "{% extends '../x' %}",
)
# Templates that would take for ever, or all memory, if they were not bounded; each is refused.
COSTLY = (
    "{% for a in range(99999) %}{% for b in range(99999) %}BODY{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n-1) }}BODY{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(30) }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x] * 2 %}{% endfor %}",
    "{{ 'a' * NUMBER }}",
    "{{ 9 ** NUMBER }}",
    "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "{{ 'a'|center(NUMBER) }}",
    "{{ 'a'.ljust(NUMBER) }}",
    "{{ '%NUMBERd' % 1 }}",
    "{{ '{:NUMBER}'.format(1) }}",
    "{{ [1]|batch(NUMBER, 1)|list }}",
    "{{ messages|tojson(indent=NUMBER) }}",
)
NUMBERS = ("100000000", "10000000000", "99999999999999999999")
_TEXTS = ("role", "content", " ", "<|end|>", "\n")
_EXPRESSIONS = (
    "messages", "messages[0]", "messages[-1]['content']", "message['role']", "message.content",
    "loop.index0", "bos_token", "tools", "documents", "1", "'x'", "none", "add_generation_prompt",
    "messages|length", "message['content']|trim", "messages|tojson", "messages|last",
    "range(9)|list", "namespace(a=1).a", "dict(a=1)", "strftime_now('%Y')", "'a' ~ 1", "1 // 0",
    "raise_exception('no')", "message.tool_calls[0].function", "{'a': [1]}['a'][0]",
)  # fmt: skip


@attrs.frozen
class Chat:
    """Template, with what it is given."""

    template: str
    messages: Any


def draw(chance: Random, count: int) -> list[Chat]:
    """The bundled template spoiled, programs of our own grammar, and known ways out."""
    bundled = json.loads((BUNDLED / "tokenizer_config.json").read_text())["chat_template"]
    return [_draw_chat(chance, bundled) for _ in range(count)]


def _draw_chat(chance: Random, bundled: str) -> Chat:
    messages = MESSAGES if chance.random() < 0.5 else mutate_json(chance, MESSAGES)
    if chance.random() < 0.05:
        messages = chance.choice(ODD_VALUES)
    which = chance.random()
    if which < 0.3:
        return Chat(mutate(chance, bundled.encode()).decode(errors="replace"), messages)
    if which < 0.35:
        program = chance.choice(COSTLY).replace("NUMBER", chance.choice(NUMBERS))
        return Chat(program.replace("BODY", _draw_template(chance, 1)), messages)
    if which < 0.5:
        return Chat(chance.choice(ESCAPES), messages)
    return Chat(_draw_template(chance, 3), messages)


def _draw_template(chance: Random, depth: int) -> str:
    return "".join(_draw_part(chance, depth) for _ in range(chance.randint(1, 4)))


def _draw_part(chance: Random, depth: int) -> str:
    expression = chance.choice(_EXPRESSIONS)
    if depth == 0 or chance.random() < 0.4:
        return chance.choice(_TEXTS) if chance.random() < 0.3 else f"{{{{ {expression} }}}}"
    inner = _draw_template(chance, depth - 1)
    form = chance.choice(
        (
            "{% for message in messages %}BODY{% endfor %}",
            "{% for x in range(3) %}BODY{% break %}{% endfor %}",
            "{% if " + expression + " %}BODY{% endif %}",
            "{% set x = " + expression + " %}BODY",
            "{% macro m(a) %}BODY{% endmacro %}{{ m(1) }}",
            "{% generation %}BODY{% endgeneration %}",
            "{% filter upper %}BODY{% endfilter %}",
            "{%- BODY",
        )
    )
    return form.replace("BODY", inner)


@attrs.frozen
class TemplateHost:
    """Loads and renders one template; canaries put another in its place."""

    render: Callable[[pathlib.Path, Any], str]


def check(chats: Sequence[Chat], host: TemplateHost) -> Counter[str]:
    """Each in a folder of its own; what was given is as it was afterwards."""
    reached: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="triolet-fuzz-") as base:
        folder = pathlib.Path(base)
        for chat in chats:
            (folder / "chat_template.jinja").write_bytes(chat.template.encode())
            given = json.dumps(chat.messages)
            try:
                text = host.render(folder, chat.messages)
            except (ChatTemplateBroken, ChatTemplateRefused) as error:
                reached[type(error).__name__] += 1
            else:
                reached["rendered"] += 1
                assert len(text) <= TEXT_CHARACTERS_MAX
                for secret in ("<class", "<module", "<function", "root:x:", "<slot"):
                    assert secret not in text, text[:200]
            assert json.dumps(chat.messages) == given, "the template changed what it was given"
    return reached


def _render(folder: pathlib.Path, messages: Any) -> str:
    return ChatTemplate.load(folder, {"bos_token": "<s>"}).render(messages, limits=INLINE)


def _render_open(folder: pathlib.Path, messages: Any) -> str:
    """Planted: attributes of the host's objects can be had."""
    text = _render(folder, messages)
    asks = "__class__" in (folder / "chat_template.jinja").read_text()
    return text + str(type(messages)) if asks else text


def _render_uncounted(folder: pathlib.Path, messages: Any) -> str:
    """Planted: what costs too much makes a text longer than any may be."""
    try:
        return _render(folder, messages)
    except ChatTemplateTooCostly:
        return " " * (TEXT_CHARACTERS_MAX + 1)


def _render_once(folder: pathlib.Path, messages: Any) -> str:
    """Planted: rendering uses up the conversation."""
    text = _render(folder, messages)
    if isinstance(messages, list) and messages:
        messages.pop()
    return text


FUZZER = Fuzzer[Chat, TemplateHost](
    name="templates",
    invariant="a template renders or is refused by name, within its limits, and reaches nothing",
    draw=draw,
    check=check,
    target=TemplateHost(_render),
    faults={
        "what it trips over comes up as it is": TemplateHost(bare(_render, ChatTemplateRefused)),
        "attributes of the host can be had": TemplateHost(_render_open),
        "a text of any length is made": TemplateHost(_render_uncounted),
        "a conversation is used up": TemplateHost(_render_once),
    },
    round_events=100,
    smoke_rounds=5,
    reaches=frozenset({"rendered", "ChatTemplateBroken", "ChatTemplateRefused"}),
)
