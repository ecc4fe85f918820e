"""Chat template of a model: renders a conversation to the text that the model was trained on.

Templates are programs from the model folder, so they run in a sandbox that bounds their time and
memory (`template_sandbox`), with the functions and options that `transformers` gives them and
nothing else: the text is equal to `apply_chat_template`'s, character for character. The reason of a
refusal is one of a closed list of sentences, or what the template itself raised.
"""

import datetime
import hashlib
import json
import logging
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Self

import attrs
import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.utils

from ...engine.errors import ModelFolderError
from ...engine.model_config.folder import read_bytes, read_object
from ..errors import (
    ChatTemplateBroken,
    ChatTemplateMissing,
    ChatTemplateRefused,
    ChatTemplateTooCostly,
)
from .template_sandbox import (
    IN_THREAD,
    NUMBER_MAX,
    BoundedSandbox,
    RenderLimits,
    TemplateTooCostly,
    bounded_filter,
    render_within,
)
from .template_values import TemplateFunction

logger = logging.getLogger(__name__)
# Names of templates in a folder that has several.
DEFAULT, TOOL_USE = "default", "tool_use"
# The largest known have 30 kB; the settings may list all added tokens.
TEMPLATE_BYTES_MAX = 2**20
SETTINGS_BYTES_MAX = 256 * 2**20
# A width of a part of a time, to which the C library pads it.
_WIDE_TIME = re.compile(r"%[_\-0^#+]*\d{3}")
_TOO_COSTLY = "it takes more time or memory than a template may"
Now = Callable[[], datetime.datetime]


@attrs.frozen(eq=False)
class ChatTemplate:
    """The compiled template or templates of one model."""

    # By name; `DEFAULT` is always there.
    _templates: Mapping[str, jinja2.Template]
    # {"bos_token": "<s>", …}, for templates to refer to.
    _special_tokens: Mapping[str, str]
    # The text of the one that shows tools, as the folder has it.
    source: str = ""

    @classmethod
    def load(
        cls,
        folder: str | pathlib.Path,
        special_tokens: Mapping[str, str],
        *,
        file: str = "",
        now: Now = datetime.datetime.now,
    ) -> Self:
        """Read `file`, else `chat_template.jinja`, else `chat_template` of `tokenizer_config.json`.

        `now` is what templates that print a date ask. Raises `ChatTemplateMissing`;
        `ChatTemplateBroken` when one does not compile; `ModelFolderError` for unreadable files.
        """
        sources = {DEFAULT: _text(pathlib.Path(file))} if file else _sources(pathlib.Path(folder))
        environment = _make_environment(now)
        templates = {}
        for name, source in sources.items():
            try:
                templates[name] = template = environment.from_string(source)
                # A chain of maps by default, which each rendering would walk name by name.
                template.globals = dict(template.globals)
            except jinja2.TemplateSyntaxError as error:
                reason = f"the chat template is wrong in line {error.lineno}: {error.message}"
                raise ChatTemplateBroken(file or str(folder), reason) from error
            except (*_TRIPS, SyntaxError, MemoryError) as error:  # nested too deep, or so
                reason = f"the chat template cannot be compiled: {type(error).__name__}: {error}"
                raise ChatTemplateBroken(file or str(folder), reason) from error
        return cls(templates, special_tokens, sources.get(TOOL_USE, sources[DEFAULT]))

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        limits: RenderLimits = IN_THREAD,
    ) -> str:
        """The text of a conversation, ready for `encode(..., add_special_tokens=False)`.

        `arguments` are variables of the template, of other names than those that it has anyway.

        Raises `ChatTemplateTooCostly` beyond the limits, `ChatTemplateRefused` when the template
        does or trips over what it was given.
        """
        name = TOOL_USE if tools and TOOL_USE in self._templates else DEFAULT
        values = {
            **(arguments or {}),
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special_tokens,
        }
        try:
            if _MISTRAL in self.source:
                values["messages"] = _with_short_ids(messages)
            return render_within(limits, self._templates[name], values, len(self.source))
        except (TemplateTooCostly, MemoryError, OverflowError) as error:
            raise ChatTemplateTooCostly(_TOO_COSTLY) from error
        except (jinja2.TemplateError, *_TRIPS) as error:
            # The error's words may hold the prompt, which is never logged.
            logger.info("a chat template refused: %s", type(error).__name__)
            raise ChatTemplateRefused(_reason(error)) from error


# Mistral's templates refuse ids of calls that have not nine characters.
_MISTRAL = "[TOOL_CALLS]"
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}", re.ASCII)


def _with_short_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose ids of calls are as Mistral's; each is the same wherever it stands."""
    found = []
    for message in messages:
        if calls := message.get("tool_calls"):
            shortened = [{**call, "id": _short_id(call.get("id"))} for call in calls]
            message = {**message, "tool_calls": shortened}
        if "tool_call_id" in message:
            message = {**message, "tool_call_id": _short_id(message["tool_call_id"])}
        found.append(message)
    return found


def _short_id(call_id: object) -> str:
    text = str(call_id)
    is_short = _SHORT_ID.fullmatch(text) is not None
    return text if is_short else hashlib.sha256(text.encode()).hexdigest()[:9]


# Errors of expressions when a message has another shape than the template expects.
_TRIPS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


# Characters of a template's own error in the answer.
RAISED_CHARACTERS_MAX = 500
# Limits of JSON: characters for each level, and of a separator.
INDENT_MAX = 16


class _Raised(jinja2.TemplateError):
    """Error that a template raised itself, in its own words."""


def _reason(error: Exception) -> str:
    """A closed list: the words of jinja2 and Python may hold anything."""
    match error:
        case _Raised():
            return str(error)[:RAISED_CHARACTERS_MAX]
        case jinja2.exceptions.SecurityError():
            return "it does what its sandbox forbids"
        case jinja2.UndefinedError():
            return "it asks for something that is not in them"
        case jinja2.TemplateError():
            return "it cannot be rendered"
        case _:
            return "they have another shape than it expects"


def _sources(folder: pathlib.Path) -> dict[str, str]:
    """Template texts by name; the file of its own goes before the settings."""
    own = folder / "chat_template.jinja"
    settings = folder / "tokenizer_config.json"
    if own.exists():
        return {DEFAULT: _text(own)}
    declared = None
    if settings.exists():
        declared = read_object(settings, SETTINGS_BYTES_MAX).get("chat_template")
    match declared:
        case str():
            return {DEFAULT: declared}
        case list():
            named = dict(_named(entry) for entry in declared)
            if DEFAULT in named:
                return named
    raise ChatTemplateMissing


def _text(path: pathlib.Path) -> str:
    try:
        return read_bytes(path, TEMPLATE_BYTES_MAX).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ModelFolderError(path, f"is not UTF-8: {error}") from error


def _named(entry: object) -> tuple[str, str]:
    """Name and text of one template of several; nameless ones share one that is not used."""
    match entry:
        case {"name": str(name), "template": str(text)}:
            return name, text
        case _:
            return "", ""


def _make_environment(now: Now) -> jinja2.Environment:
    environment = BoundedSandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, GenerationBlock],
    )
    environment.filters["tojson"] = bounded_filter("tojson", _to_json)
    environment.globals["raise_exception"] = TemplateFunction(_raise_exception)
    environment.globals["strftime_now"] = TemplateFunction(lambda form: _time_text(now(), form))
    environment.globals["namespace"] = _Namespace
    environment.globals["dict"] = _Dict()
    return environment


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks words for training; here it has no effect."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The body takes the block's place, in a scope of its own as any call block's."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [jinja2.nodes.Scope(body, lineno=line)]


class _Dict:
    """`dict(…)` and `dict.fromkeys(…)`; the class itself would give templates its attributes."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def __repr__(self) -> str:
        return "dict()"

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(jinja2.utils.Namespace):
    """`namespace(…)` without underscored names: those lead out of the sandbox."""

    def __init__(self, *args: Any, **values: Any) -> None:
        given = dict(*args, **values)
        for name in given:
            _refuse_underscore(name)
        super().__init__(given)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "namespace()"  # what is in it may be nested, and without end as text


def _refuse_underscore(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no name like {name!r}")


def _time_text(moment: datetime.datetime, form: str) -> str:
    if len(form) > NUMBER_MAX or _WIDE_TIME.search(form):
        raise TemplateTooCostly("a time is too wide")
    return moment.strftime(form)


def _raise_exception(message: str) -> NoReturn:
    raise _Raised(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    *,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, with the options of `transformers`; jinja2's own filter escapes for HTML."""
    if indent is not None and not 0 <= indent <= INDENT_MAX:
        raise TemplateTooCostly("too wide an indent")
    if separators is not None and max(map(len, separators)) > INDENT_MAX:
        raise TemplateTooCostly("too long a separator")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
