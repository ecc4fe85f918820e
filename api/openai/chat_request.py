"""Body of a chat completions request, read and checked.

Sans-IO: a JSON object in, `ChatRequest` or a typed `ApiError` that names the field out.
"""

from typing import Any

import attrs

from ...engine.sampling_params import LOGPROBS_MAX, SamplingParams
from ...runtime.text.prompts import ChatPrompt, Prompt
from ..errors import bad_field
from ..schema.fields import FLAG, Integer, JsonObject, missing
from ..schema.tables import Body, Field, Unserved, is_empty, never, one_of
from .completion_fields import SHARED_FIELDS, CompletionOptions, read_shared
from .message_fields import Messages, tool_fields
from .responses_fields import RuntimeOptions, check_model
from .sampling_fields import sampling_field
from .tool_use import ToolUse, tool_use_of

_MAX_TOKENS = sampling_field("max_tokens").kind
_TOOLS = "the older name is not served; send `tools`"
CHAT = Body(
    {
        "messages": Field(Messages(), "The conversation; required without token ids."),
        "max_completion_tokens": Field(_MAX_TOKENS, "So many tokens at most; wins."),
        "max_tokens": Field(_MAX_TOKENS, "The older name, which most clients send."),
        "add_generation_prompt": Field(FLAG, "Let the template open the answer; on by default."),
        **SHARED_FIELDS,
        "continue_final_message": Field(Unserved(is_empty, "an answer begins a new message")),
        **tool_fields(is_flat=False),
        "functions": Field(Unserved(is_empty, _TOOLS)),
        "function_call": Field(Unserved(one_of("auto", "none"), _TOOLS)),
        "logprobs": Field(FLAG, "Tell the logprob of each token of the answer."),
        "top_logprobs": Field(
            Integer(minimum=0, maximum=LOGPROBS_MAX),
            "And of so many most likely ones; needs `logprobs`.",
        ),
        "modalities": Field(Unserved(one_of(["text"]), "only text is served")),
        "audio": Field(Unserved(never, "audio is not served")),
        "prediction": Field(Unserved(never, "predictions are not served")),
        "web_search_options": Field(Unserved(never, "web search is not served")),
        "chat_template": Field(Unserved(never, "templates come from the model folder alone")),
        "chat_template_kwargs": Field(
            Unserved(is_empty, "templates take no arguments from requests")
        ),
        "echo": Field(Unserved(is_empty, "echo is served by /v1/completions")),
        "moderation": Field(Unserved(never, "nothing is moderated here")),
    }
)


@attrs.frozen(kw_only=True)
class ChatRequest:
    """One validated request."""

    prompt: Prompt
    sampling: SamplingParams
    options: CompletionOptions
    tools: ToolUse = attrs.field(factory=ToolUse)

    @property
    def names(self) -> dict[str, str]:
        """How this request calls what `SamplingParams` calls otherwise; see `to_api_error`."""
        return {**self.options.names, "logprobs": "top_logprobs"}


def read_chat_request(body: JsonObject, *, model: str, has_tools: bool = False) -> ChatRequest:
    """Validate one body; `model` is the served one, `has_tools` whether its template has them.

    Raises `ApiError`.
    """
    values = CHAT.read(body)
    check_model(values.get("model"), model)
    # The new name wins over the deprecated one, which most clients still send.
    max_tokens = values.get("max_completion_tokens", values.get("max_tokens"))
    options, sampling = read_shared(values, max_tokens=max_tokens, logprobs=_read_logprobs(values))
    tools = tool_use_of(values, has_tools=has_tools)
    prompt = _read_prompt(values, options.runtime, tools)
    constrained = tools.constrained(sampling, options.form_field)
    if constrained is not sampling:
        sampling, options = constrained, attrs.evolve(options, form_field="tools")
    return ChatRequest(prompt=prompt, sampling=sampling, options=options, tools=tools)


def _read_logprobs(values: dict[str, Any]) -> int | None:
    top: int = values.get("top_logprobs", 0)
    if values.get("logprobs", False):
        return top
    if top:
        raise bad_field("top_logprobs", "needs `logprobs`")
    return None


def _read_prompt(values: dict[str, Any], runtime: RuntimeOptions, tools: ToolUse) -> Prompt:
    if runtime.input_token_ids is not None:
        if "messages" in values:
            raise bad_field("runtime.input_token_ids", "replaces `messages`")
        return runtime.input_token_ids
    if "messages" not in values:
        raise missing("messages")
    opens = values.get("add_generation_prompt", True)
    return ChatPrompt(values["messages"], opens, tools.for_template)
