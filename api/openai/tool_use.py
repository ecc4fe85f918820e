"""Tools of one request: which functions a model may call, whether it must, what its answer matches.

Sans-IO: typed values in, typed values or `ApiError` out. The fields are read by `message_fields`.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs

from ...engine.errors import InvalidParameter
from ...engine.sampling_params import SamplingParams
from ...engine.structured_outputs import StructuredOutputs
from ...runtime.frontend.generation import Generator
from ...runtime.text.answer_format import TEXT_ALONE, AnswerFormat, AnswerParser
from ...runtime.text.prompts import ChatPrompt, Prompt
from ...runtime.text.tool_calls import CALLS_MAX, Tool, ToolChoice
from ..errors import bad_field, to_api_error, unsupported
from ..schema.fields import JsonObject

TOOL_FIELD_NAMES = ("tools", "tool_choice", "parallel_tool_calls")
# The type of a `tool_choice` that names the functions that may be called.
ALLOWED_TOOLS = "allowed_tools"
# Clients name types of tools that are not served as they like; of more than these nothing is said.
IGNORED_KINDS_MAX = 64
logger = logging.getLogger(__name__)


@attrs.frozen
class ToolChoiceValue:
    """Value of `tool_choice`; `name` is that of the one function that must be called.

    Of several functions alone that may be called, `allowed` are the names: the model is shown all
    others as well, so that the prompt and what is cached of it stay the same.
    """

    choice: ToolChoice
    name: str | None = None
    allowed: tuple[str, ...] | None = None

    @property
    def names(self) -> tuple[str, ...] | None:
        """Functions that may be called; None: each."""
        return self.allowed if self.name is None else (self.name,)


@attrs.frozen
class ToolOrigin:
    """Client's name for a function that the model is shown: see `response_tools`."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def named(self) -> JsonObject:
        """Fields of a call that name it."""
        name: JsonObject = {"name": self.name}
        return name if self.namespace is None else {**name, "namespace": self.namespace}


@attrs.frozen
class ToolSet:
    """Value of `tools`: what the model is shown, and what of it is something else to the client.

    `ignored` are kinds of tools that are not served. `given` is the value as it came.
    """

    tools: Sequence[Tool] = ()
    # {name that the model is shown: what it is}, of those that are not functions of that name.
    origins: Mapping[str, ToolOrigin] = MappingProxyType({})
    ignored: Sequence[str] = ()
    given: Sequence[JsonObject] = ()


@attrs.frozen
class ToolUse:
    """The functions of one request. Without any, or with the choice `none`, nothing is called."""

    tools: Sequence[Tool] = ()
    choice: ToolChoiceValue = ToolChoiceValue(ToolChoice.AUTO)
    is_parallel: bool = True
    given: ToolSet = ToolSet()
    # In which the model writes calls.
    answer_format: AnswerFormat = TEXT_ALONE

    @property
    def is_on(self) -> bool:
        """Whether calls are read out of the answer."""
        return bool(self.tools) and self.choice.choice is not ToolChoice.NONE

    @property
    def calls_max(self) -> int | None:
        """Limit of calls in an answer; None: any number."""
        return None if self.is_parallel else 1

    @property
    def for_template(self) -> list[dict[str, Any]] | None:
        """Tools that the model is shown."""
        return [tool.for_template() for tool in self.tools] if self.is_on else None

    @property
    def objects(self) -> list[JsonObject]:
        """The tools as a response object has them: as they came, functions with all fields."""
        functions = {tool.name: tool for tool in self.tools}
        return [
            _function_object(functions[str(given["name"])])
            if given["type"] == "function"
            else given
            for given in self.given.given
        ]

    @property
    def choice_object(self) -> JsonObject | str:
        """The choice as a response object has it."""
        names = self.choice.names
        if names is None:
            return self.choice.choice
        chosen = [
            {"type": "custom" if origin.is_custom else "function", **origin.named}
            for origin in map(self.origin, names)
        ]
        if self.choice.allowed is None:
            return chosen[0]
        return {"type": ALLOWED_TOOLS, "mode": self.choice.choice, "tools": chosen}

    def parser(self, *, is_open: bool = False) -> AnswerParser | None:
        """Reads an answer; `is_open`: the prompt has opened its reasoning. None: it is text."""
        tools = self.tools if self.is_on else ()
        is_forced = self.is_on and self.choice.choice is ToolChoice.REQUIRED
        return self.answer_format.parser(
            tools, self.calls_max, is_open=is_open, is_forced=is_forced
        )

    def readable(self, sampling: SamplingParams) -> SamplingParams:
        """Have special tokens be text if marks must be read in it."""
        is_read = self.is_on or self.answer_format.parts_reasoning
        if not (is_read and self.answer_format.has_special_marks and sampling.skip_special_tokens):
            return sampling
        return attrs.evolve(sampling, skip_special_tokens=False)

    def origin(self, name: str) -> ToolOrigin:
        """Client's name for the function that the model calls."""
        return self.given.origins.get(name) or ToolOrigin(name)

    def constrained(self, sampling: SamplingParams, form_field: str) -> SamplingParams:
        """Add the form that the answer must have. Raises `ApiError`; `form_field` asked for another
        form."""
        form = self.form()
        if form is None:
            return sampling
        if sampling.structured_outputs is not None:
            raise bad_field(form_field, "cannot be combined with tools that must be called")
        return attrs.evolve(sampling, structured_outputs=form)

    def form(self) -> StructuredOutputs | None:
        """Form that the answer must match. Raises `ApiError` of `tools` if it cannot be served."""
        if not self.is_on:
            return None
        names = self.choice.names
        tools = [tool for tool in self.tools if names is None or tool.name in names]
        is_required = self.choice.choice is ToolChoice.REQUIRED
        if not is_required and names is None and not any(tool.strict for tool in tools):
            return None
        try:
            if is_required:
                calls_max = CALLS_MAX if self.is_parallel and self.choice.name is None else 1
                text = self.answer_format.forced(tools, calls_max=calls_max)
            else:
                text = self.answer_format.strict(tools)
            return StructuredOutputs.grammar(text)
        except InvalidParameter as error:
            raise to_api_error(error, {"structured_outputs": "tools"}) from None


def _function_object(tool: Tool) -> JsonObject:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description or None,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


NO_TOOLS = ToolUse()


def tool_use_of(values: Mapping[str, Any], answer_format: AnswerFormat) -> ToolUse:
    """Read values of the three fields, together.

    Raises `ApiError`; where the model has no format for calls, for any that is on.
    """
    if values.keys().isdisjoint(TOOL_FIELD_NAMES):
        return NO_TOOLS if answer_format is TEXT_ALONE else ToolUse(answer_format=answer_format)
    given: ToolSet = values.get("tools", ToolSet())
    tools = given.tools
    choice: ToolChoiceValue = values.get("tool_choice", ToolChoiceValue(ToolChoice.AUTO))
    if choice.choice is ToolChoice.REQUIRED and not tools:
        raise bad_field("tool_choice", "needs `tools`")
    for name in choice.names or ():
        if all(tool.name != name for tool in tools):
            raise bad_field("tool_choice", f"function {name} is not among `tools`")
    use = ToolUse(tools, choice, values.get("parallel_tool_calls", True), given, answer_format)
    if use.is_on and answer_format.tools is None:
        raise unsupported("tools", answer_format.no_tools_reason)
    return use


@attrs.define(eq=False)
class IgnoredTools:
    """Log of the kinds of tools that are not served, each once for a protocol of a frontend."""

    kinds: set[str] = attrs.field(factory=set, init=False)

    def note(self, kinds: Iterable[str]) -> None:
        """A request has tools of these kinds."""
        for kind in sorted(set(kinds) - self.kinds)[: IGNORED_KINDS_MAX - len(self.kinds)]:
            self.kinds.add(kind)
            logger.warning("tools of the type %s are ignored: they are carried out elsewhere", kind)


async def with_form_behind(
    generator: Generator,
    prompt: Prompt,
    sampling: SamplingParams,
    tools: ToolUse,
    *,
    is_call: bool,
    principal: str = "",
) -> tuple[Prompt, SamplingParams]:
    """Let the form of an answer begin where the reasoning ends; `is_call`: calls have the form.

    Whether the prompt has opened the reasoning decides the grammar, so the prompt is made into
    tokens before its request is sent. Nothing is done without a form, nor for other models.

    Raises as `Generator.tokenize`, and `InvalidParameter` for a form that is too large.
    """
    form, answers = sampling.structured_outputs, tools.answer_format
    if form is None or not answers.parts_reasoning:
        return prompt, sampling
    if isinstance(prompt, ChatPrompt):
        prompt = await generator.tokenize(prompt, add_special_tokens=False, principal=principal)
    assert isinstance(prompt, Sequence)
    assert not isinstance(prompt, str), "an assistant is asked in messages or token ids"
    is_open = answers.is_opened(prompt, generator.token_bytes)
    form = answers.behind_reasoning(form, is_open=is_open, is_call=is_call)
    return prompt, attrs.evolve(sampling, structured_outputs=form)
