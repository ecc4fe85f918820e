"""The text is `transformers`' text; the sandbox holds; errors name the folder or the message."""

import datetime
import json
import pathlib
import warnings
from typing import Any

import pytest

from triolet.engine.errors import ModelFolderError
from triolet.runtime.errors import ChatTemplateBroken, ChatTemplateMissing, ChatTemplateRefused
from triolet.runtime.text.chat_template import ChatTemplate

from ..model_folders import CHAT_TEMPLATE, byte_level_tokenizer, write_folder

MESSAGES = [
    {"role": "system", "content": "  Be brief. "},
    {"role": "user", "content": "Grüße <b> & 'x'?"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "More"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"ü": [1, None, True]}}}]
# Everything that templates of the known families use: blocks, loop control, namespaces, macros.
LARGE_TEMPLATE = """{%- set ns = namespace(count=0, extra=dict(a=1)) -%}
{%- macro show(text) -%}[{{ text }}]{%- endmacro -%}
{{ bos_token }}
{% if tools is not none %}
    {{ tools | tojson(indent=2) }}
{% endif %}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% continue %}
    {% endif %}
    {% set ns.count = ns.count + 1 %}
    {% if message['role'] == 'assistant' %}
{% generation %}{{ message.content }}{% endgeneration %}
    {% else %}
{{ show(message.content | trim) }} {{ message | tojson }} {{ loop.index0 }}
    {% endif %}
    {% if ns.count > 9 %}{% break %}{% endif %}
{% endfor %}
{{ ns.count }} {{ ns.extra.a }} {{ dict.fromkeys('ab') | tojson }}
{{ undefined_name is defined }} {{ strftime_now('%Y') | length }}
{%- if add_generation_prompt %}{{ eos_token + 'assistant' }}{% endif %}
"""


def load(folder: pathlib.Path, template: Any = None) -> ChatTemplate:
    settings = {} if template is None else {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return ChatTemplate.load(folder, {"bos_token": "<|begin|>", "eos_token": "<|end|>"})


@pytest.mark.slow
@pytest.mark.parametrize("template", [CHAT_TEMPLATE, LARGE_TEMPLATE], ids=["small", "large"])
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_the_text_is_what_transformers_renders(
    tmp_path: pathlib.Path, template: str, prompt: bool, tools: list[dict[str, Any]] | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whatever its import warns of is not ours
        from transformers import PreTrainedTokenizerFast

    write_folder(tmp_path, byte_level_tokenizer(), chat_template=template)
    oracle = PreTrainedTokenizerFast.from_pretrained(str(tmp_path))
    expected = oracle.apply_chat_template(
        MESSAGES, tools=tools, tokenize=False, add_generation_prompt=prompt
    )
    rendered = load(tmp_path, template).render(MESSAGES, tools=tools, add_generation_prompt=prompt)
    assert rendered == expected


def test_the_file_goes_before_the_settings(tmp_path: pathlib.Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert load(tmp_path, "from the settings").render([]) == "from the file"


def test_a_template_for_tools_is_used_for_tools(tmp_path: pathlib.Path) -> None:
    template = load(
        tmp_path,
        [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}],
    )
    assert template.render([]) == "plain"
    assert template.render([], tools=TOOLS) == "tools"
    assert template.source == "tools"  # by which the format of calls is known


def test_the_date_is_passed_in(tmp_path: pathlib.Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}")
    template = ChatTemplate.load(tmp_path, {}, now=lambda: datetime.datetime(2031, 2, 3))
    assert template.render([]) == "03 Feb 2031"


def test_functions_have_no_addresses(tmp_path: pathlib.Path) -> None:
    shown = "{{ raise_exception }}{{ strftime_now ~ [raise_exception] }}"
    template = load(tmp_path, shown + "{{ raise_exception._function }}")
    assert template.render([]) == "function()function()[function()]"


@pytest.mark.parametrize(
    "declared",
    [
        None,
        7,
        [],
        [7, None, "x", {"name": "default"}, {"name": [], "template": "x"}],
        [{"name": "other", "template": "x"}],
        [{"name": "default", "template": 5}],
    ],
)
def test_a_missing_template_is_named(tmp_path: pathlib.Path, declared: object) -> None:
    with pytest.raises(ChatTemplateMissing, match="has no chat template") as caught:
        load(tmp_path, declared)
    assert str(tmp_path) not in str(caught.value), "clients see it"


def test_a_byte_order_mark_is_not_in_the_prompt(tmp_path: pathlib.Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xef\xbb\xbfHi")
    assert ChatTemplate.load(tmp_path, {}).render([]) == "Hi"


def test_a_file_takes_the_place_of_the_folder_s_own(tmp_path: pathlib.Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("own")
    file = tmp_path / "other.jinja"
    file.write_text("given")
    assert ChatTemplate.load(tmp_path, {}, file=str(file)).render([]) == "given"
    file.write_text("{% if %}")
    with pytest.raises(ChatTemplateBroken, match=r"other\.jinja.*line 1.*--chat-template"):
        ChatTemplate.load(tmp_path, {}, file=str(file))


def test_words_of_a_refusal_are_not_logged(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    template = load(tmp_path, "{{ raise_exception('not ' ~ messages[0].content) }}")
    with pytest.raises(ChatTemplateRefused):
        template.render([{"role": "user", "content": "hunter2"}])
    assert "refused" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_broken_template_is_named_with_its_line(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ChatTemplateBroken, match="line 2"):
        load(tmp_path, "\n{% if %}")


def test_a_folder_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelFolderError, match=r"tokenizer_config\.json: is not JSON"):
        ChatTemplate.load(tmp_path, {})
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelFolderError, match=r"chat_template\.jinja: is not UTF-8"):
        ChatTemplate.load(tmp_path, {})


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in b %}" * 30 + "{% endfor %}" * 30,  # more than Python's own may be
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
        "{{ x | no_such_filter }}",
        "{% if x %}",
    ],
    ids=["deep loops", "deep brackets", "an unknown filter", "an open block"],
)
def test_whatever_does_not_compile_is_named(tmp_path: pathlib.Path, template: str) -> None:
    with pytest.raises(ChatTemplateBroken, match="the chat template"):
        load(tmp_path, template)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ raise_exception(messages|tojson * 99) }}", "the messages: .{500}$"),
        ("{{ messages[0].content + 1 }}", "they have another shape"),
        ("{{ messages[7].content }}", "not in them"),
        ("{{ messages.append(1) }}", "forbids"),
        ("{{ ''.__class__.__mro__ }}", "forbids|not in them"),
        ("{{ dict.update(1) }}", "not in them"),
        ("{{ dict.__init__.__globals__ }}", "forbids|not in them"),
        ("{% set ns = namespace(_x=1) %}", "forbids"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "forbids"),
        ("{% for i in range(1000000000) %}{% endfor %}", "more time or memory"),
        ("{{ messages[0].content * 10 ** 20 }}", "more time or memory"),
        ("{{ messages|tojson(indent=17) }}", "more time or memory"),
        ("{{ strftime_now('%_999Y') }}", "more time or memory"),
        ("{{ strftime_now('%c' * 3000) }}", "more time or memory"),
        ("{{ messages|tojson(separators=('x' * 17, ':')) }}", "more time or memory"),
        ("{% include 'x' %}", "cannot be rendered|another shape"),
    ],
)
def test_refusals_are_typed(tmp_path: pathlib.Path, template: str, reason: str) -> None:
    with pytest.raises(ChatTemplateRefused, match=reason):
        load(tmp_path, template).render(MESSAGES)
