"""Tools of one request: which functions a model may call, whether it must, what its answer matches.

Sans-IO: typed values in, typed values or `ApiError` out. The fields are read by `message_fields`.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from ...engine.errors import InvalidParameter
from ...engine.sampling_params import SamplingParams
from ...engine.structured_outputs import StructuredOutputs
from ...runtime.text.tool_calls import CALLS_MAX, Tool, ToolChoice, forced_calls, strict_calls
from ..errors import bad_field, to_api_error, unsupported
from ..schema.fields import JsonObject

TOOL_FIELD_NAMES = ("tools", "tool_choice", "parallel_tool_calls")


@attrs.frozen
class ToolChoiceValue:
    """Value of `tool_choice`; `name` is that of the one function that must be called."""

    choice: ToolChoice
    name: str | None = None


@attrs.frozen
class ToolUse:
    """The functions of one request. Without any, or with the choice `none`, nothing is called."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoiceValue = ToolChoiceValue(ToolChoice.AUTO)
    is_parallel: bool = True

    @property
    def is_on(self) -> bool:
        """Whether calls are read out of the answer."""
        return bool(self.tools) and self.choice.choice is not ToolChoice.NONE

    @property
    def calls_max(self) -> int | None:
        """So many calls at most in an answer; None: any number."""
        return None if self.is_parallel else 1

    @property
    def for_template(self) -> list[dict[str, Any]] | None:
        """What the model is shown."""
        return [tool.for_template() for tool in self.tools] if self.is_on else None

    @property
    def objects(self) -> list[JsonObject]:
        """The functions as a response object has them."""
        return [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description or None,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }
            for tool in self.tools
        ]

    @property
    def choice_object(self) -> JsonObject | str:
        """The choice as a response object has it."""
        name = self.choice.name
        return self.choice.choice if name is None else {"type": "function", "name": name}

    def constrained(self, sampling: SamplingParams, form_field: str) -> SamplingParams:
        """These parameters with what must come. Raises `ApiError`; `form_field` asked for another
        form.
        """
        form = self.form()
        if form is None:
            return sampling
        if sampling.structured_outputs is not None:
            raise bad_field(form_field, "must not be together with tools that must be called")
        return attrs.evolve(sampling, structured_outputs=form)

    def form(self) -> StructuredOutputs | None:
        """What the answer must match. Raises `ApiError` of `tools` if it is too large."""
        if not self.is_on:
            return None
        tools = self.tools
        if self.choice.choice is ToolChoice.REQUIRED:
            name = self.choice.name
            tools = tools if name is None else tuple(t for t in tools if t.name == name)
            calls_max = CALLS_MAX if self.is_parallel and name is None else 1
            text = forced_calls(tools, calls_max=calls_max)
        elif any(tool.strict for tool in tools):
            text = strict_calls(tools)
        else:
            return None
        try:
            return StructuredOutputs.grammar(text)
        except InvalidParameter as error:
            raise to_api_error(error, {"structured_outputs": "tools"}) from None


NO_TOOLS = ToolUse()


def tool_use_of(values: Mapping[str, Any], *, has_tools: bool) -> ToolUse:
    """Read values of the three fields, together.

    Raises `ApiError`; where the template has no tools (`has_tools`), for any that is on.
    """
    if values.keys().isdisjoint(TOOL_FIELD_NAMES):
        return NO_TOOLS
    tools: list[Tool] = values.get("tools") or []
    choice: ToolChoiceValue = values.get("tool_choice", ToolChoiceValue(ToolChoice.AUTO))
    if choice.choice is ToolChoice.REQUIRED and not tools:
        raise bad_field("tool_choice", "needs `tools`")
    if choice.name is not None and all(tool.name != choice.name for tool in tools):
        raise bad_field("tool_choice", f"names {choice.name}, which is not among `tools`")
    use = ToolUse(tuple(tools), choice, values.get("parallel_tool_calls", True))
    if use.is_on and not has_tools:
        raise unsupported("tools", "the chat template of this model knows no tools")
    return use
