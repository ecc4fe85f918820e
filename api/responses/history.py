"""Conversation history, which a response leaves to the one that continues it.

Sans-IO: a request, its record and the conversation before in, a longer conversation out. A
conversation is messages, as the chat template takes them, or token ids, exactly; the two do not
mix. Instructions are not part of it: each request brings its own, as OpenAI has it.
"""

from collections.abc import Sequence

import attrs

from ...engine.sampling_params import SamplingParams
from ...runtime.text.call_arguments import read_arguments, written_arguments
from ...runtime.text.prompts import ChatPrompt, Prompt
from ..errors import bad_field
from ..openai.fields.message_fields import Message
from ..openai.response_objects import call_object, message_object, reasoning_object, text_part
from ..openai.response_tools import custom_arguments, shown_name
from ..openai.responses_request import ResponseRequest, ids_bytes, json_bytes, text_bytes
from ..openai.template_arguments import Scalar, with_reasoning
from ..openai.tool_use import ToolOrigin, ToolUse
from ..schema.fields import JsonObject
from .record import ResponseRecord

# Size of one message, and one call, beside their texts; estimates for the bounds of keeping.
MESSAGE_BYTES, CALL_BYTES = 512, 1024


@attrs.frozen
class Conversation:
    """Messages, oldest first, or token ids."""

    messages: Sequence[Message] = ()
    token_ids: Sequence[int] | None = None

    @property
    def size_bytes(self) -> int:
        """An estimate of what it takes to keep it."""
        return sum(map(_size_of, self.messages)) + ids_bytes(len(self.token_ids or ()))


def _size_of(message: Message) -> int:
    calls = message.get("tool_calls", ())
    arguments = sum(json_bytes(call["function"]["arguments"]) + CALL_BYTES for call in calls)
    reasoning = text_bytes(message.get("reasoning_content", ""))
    return text_bytes(message["content"]) + reasoning + arguments + MESSAGE_BYTES


def continued(before: Conversation | None, request: ResponseRequest) -> Conversation:
    """The conversation with this request's input. Raises `ApiError` when messages meet ids."""
    if before is None:
        before = Conversation((), [] if request.is_token_ids else None)
    if request.is_token_ids and before.token_ids is None:
        raise bad_field(
            "runtime.input_token_ids", "cannot continue a conversation that consists of messages"
        )
    if not request.is_token_ids and before.token_ids is not None:
        raise bad_field("input", "cannot continue a conversation of token ids; send those")
    if before.token_ids is not None:
        ids = request.input_token_ids or []
        return Conversation((), [*before.token_ids, *ids])
    return Conversation([*before.messages, *request.input])


def prompt_of(
    conversation: Conversation,
    instructions: str | None,
    tools: ToolUse | None = None,
    arguments: dict[str, Scalar] | None = None,
) -> Prompt:
    """Prompt for the model."""
    if conversation.token_ids is not None:
        return conversation.token_ids
    system = [] if instructions is None else [{"role": "system", "content": instructions}]
    shown = None if tools is None else tools.for_template
    return ChatPrompt([*system, *conversation.messages], tools=shown, arguments=arguments)


def with_output(conversation: Conversation, record: ResponseRecord) -> Conversation:
    """The conversation with the output of its response."""
    if not record.events.request.generate:
        return conversation
    if conversation.token_ids is not None:
        return Conversation((), [*conversation.token_ids, *(record.token_ids or ())])
    answer: Message = {"role": "assistant", "content": record.text}
    if calls := record.calls:
        answer["tool_calls"] = [_template_call(item) for item in calls]
    return Conversation([*conversation.messages, with_reasoning(answer, record.reasoning)])


def input_items(conversation: Conversation, response_id: str) -> list[JsonObject]:
    """Input of a response as items of OpenAI's API, oldest first; token ids have none."""
    suffix = response_id.removeprefix("resp_")
    found: list[JsonObject] = []
    for index, message in enumerate(conversation.messages):
        found += _items_of(message, f"{index}_{suffix}")
    return found


def _items_of(message: Message, suffix: str) -> list[JsonObject]:
    text = message["content"]
    if message["role"] == "tool":
        head = {"id": f"fco_{suffix}", "type": "function_call_output", "status": "completed"}
        return [{**head, "call_id": message["tool_call_id"], "output": text}]
    calls = [
        call_object(
            f"fc_{place}_{suffix}",
            call.get("id", ""),
            ToolOrigin(call["function"]["name"]),
            written_arguments(call["function"]["arguments"]),
        )
        for place, call in enumerate(message.get("tool_calls", ()))
    ]
    found: list[JsonObject] = []
    if reasoning := message.get("reasoning_content"):
        content: JsonObject = {"content": [{"type": "reasoning_text", "text": reasoning}]}
        found.append(reasoning_object(f"rs_{suffix}", content))
    if text or not calls:
        is_answer = message["role"] == "assistant"
        part = text_part(text, []) if is_answer else {"type": "input_text", "text": text}
        found.append(message_object(f"msg_{suffix}", message["role"], [part]))
    return [*found, *calls]


def _template_call(item: JsonObject) -> JsonObject:
    """A call as templates take it, as when a client sends the item."""
    arguments = custom_arguments(item) or read_arguments(str(item["arguments"]))
    namespace = item.get("namespace")
    name = shown_name(str(item["name"]), None if namespace is None else str(namespace))
    function = {"name": name, "arguments": arguments}
    return {"id": item["call_id"], "type": "function", "function": function}


def prompt_alone(sampling: SamplingParams) -> SamplingParams:
    """Parameters for a prompt that is only computed, which takes one token."""
    return SamplingParams(max_tokens=1, truncate_prompt_tokens=sampling.truncate_prompt_tokens)
