"""Request bodies of chat completions: their fields, and typed requests.

Sans-IO: a JSON object in, `ChatRequest` or a typed `ApiError` that names the field out.
"""

from typing import Any, ClassVar

import attrs

from ...engine.sampling_params import SamplingParams
from ...runtime.text.answer_format import TEXT_ALONE, AnswerFormat
from ...runtime.text.prompts import ChatPrompt, Prompt
from ..errors import bad_field
from ..schema.fields import FLAG, JsonObject, missing
from ..schema.tables import IS_EMPTY, NEVER, Body, Field, Unserved, one_of
from .completion_requests import CHAT_KIND, SHARED_FIELDS, CompletionOptions, read_shared
from .fields.field_rules import CHAT_ALTERNATIVES, CHAT_RULES
from .fields.message_fields import MESSAGES, TOOL_FIELDS
from .fields.responses_fields import check_model
from .fields.sampling_fields import (
    ALTERNATIVES,
    sampling_field,
)
from .template_arguments import EFFORT, ENABLE_THINKING, TEMPLATE_ARGUMENTS, template_arguments
from .tool_use import ToolUse, tool_use_of

_MAX_TOKENS = sampling_field("max_tokens").kind
_TOOLS = "the older name is not served; send `tools`"
CHAT = Body(
    {
        "messages": Field(MESSAGES, "The conversation; required without token ids."),
        "max_completion_tokens": Field(_MAX_TOKENS, "So many tokens at most; wins."),
        "max_tokens": Field(_MAX_TOKENS, "The older name, which most clients send."),
        "add_generation_prompt": Field(FLAG, "Let the template open the answer; on by default."),
        **SHARED_FIELDS,
        "continue_final_message": Field(Unserved(IS_EMPTY, "an answer begins a new message")),
        **TOOL_FIELDS,
        "functions": Field(Unserved(IS_EMPTY, _TOOLS)),
        "function_call": Field(Unserved(one_of("auto", "none"), _TOOLS)),
        "logprobs": Field(FLAG, "Tell the logprob of each token of the answer."),
        "top_logprobs": Field(ALTERNATIVES, "Most likely tokens besides; needs `logprobs`."),
        "modalities": Field(Unserved(one_of(["text"]), "only text is served")),
        "audio": Field(Unserved(NEVER, "audio is not served")),
        "prediction": Field(Unserved(NEVER, "predictions are not served")),
        "web_search_options": Field(Unserved(NEVER, "web search is not served")),
        "chat_template": Field(Unserved(NEVER, "the server has its template (--chat-template)")),
        "chat_template_kwargs": TEMPLATE_ARGUMENTS,
        "enable_thinking": ENABLE_THINKING,
        "reasoning_effort": EFFORT,
        "include_reasoning": Field(FLAG, "Whether the answer has its reasoning; on by default."),
        "echo": Field(Unserved(IS_EMPTY, "echo is served by /v1/completions")),
        "moderation": Field(Unserved(NEVER, "nothing is moderated here")),
    },
    alternatives=CHAT_ALTERNATIVES,
    rules=CHAT_RULES,
)


@attrs.frozen(kw_only=True)
class ChatRequest:
    """Chat request, validated."""

    kind: ClassVar[str] = CHAT_KIND
    # The answer is always computed, and never begins with its prompt; see `CompletionsRequest`.
    generates: ClassVar[bool] = True
    keeps_output: ClassVar[bool] = True
    echoes_logprobs: ClassVar[bool] = False
    prompt: Prompt
    sampling: SamplingParams
    options: CompletionOptions
    tools: ToolUse = attrs.field(factory=ToolUse)
    # The answer has its reasoning.
    with_reasoning: bool = True

    @property
    def names(self) -> dict[str, str]:
        """How this request calls what `SamplingParams` calls otherwise; see `to_api_error`."""
        prompt = "messages" if isinstance(self.prompt, ChatPrompt) else "runtime.input_token_ids"
        return {**self.options.names, "logprobs": "top_logprobs", "prompt": prompt}


def read_chat_request(
    body: JsonObject, *, model: str, answer_format: AnswerFormat = TEXT_ALONE
) -> ChatRequest:
    """Validate one body; `model` is the served one, which answers in this format.

    Raises `ApiError`.
    """
    values = CHAT.read(body)
    check_model(values.get("model"), model)
    # The new name wins over the deprecated one, which most clients still send.
    max_tokens = values.get("max_completion_tokens", values.get("max_tokens"))
    logprobs = _read_logprobs(values)
    options, sampling = read_shared(values, {}, max_tokens=max_tokens, logprobs=logprobs)
    tools = tool_use_of(values, answer_format)
    prompt = _read_prompt(values, options.input_token_ids, tools)
    options, sampling = with_tools(tools, options, sampling)
    return ChatRequest(
        prompt=prompt,
        sampling=sampling,
        options=options,
        tools=tools,
        with_reasoning=values.get("include_reasoning", True),
    )


def with_tools(
    tools: ToolUse, options: CompletionOptions, sampling: SamplingParams
) -> tuple[CompletionOptions, SamplingParams]:
    """Both, where calls must be readable and may have to come. Raises `ApiError`."""
    sampling = tools.readable(sampling)
    constrained = tools.constrained(sampling, options.form_field)
    if constrained is not sampling:
        options = attrs.evolve(options, form_field="tools")
    return options, constrained


def _read_logprobs(values: dict[str, Any]) -> int | None:
    top: int = values.get("top_logprobs", 0)
    if values.get("logprobs", False):
        return top
    if top:
        raise bad_field("top_logprobs", "needs `logprobs`")
    return None


def _read_prompt(values: dict[str, Any], token_ids: list[int] | None, tools: ToolUse) -> Prompt:
    if token_ids is not None:
        if "messages" in values:
            raise bad_field("runtime.input_token_ids", "replaces `messages`")
        return token_ids
    if "messages" not in values:
        raise missing("messages")
    opens = values.get("add_generation_prompt", True)
    arguments = template_arguments(values, tools.answer_format)
    return ChatPrompt(values["messages"], opens, tools.for_template, arguments)
