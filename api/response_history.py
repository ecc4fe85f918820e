"""The conversation that a response leaves behind, for the one that continues it.

Sans-IO: a request, its record and the conversation before in, a longer conversation out. A
conversation is messages, as the chat template takes them, or token ids, exactly; the two do not
mix. Instructions are not part of it: each request brings its own, as OpenAI has it. Must not know
where responses are kept.
"""

from collections.abc import Sequence

import attrs

from ..runtime.generation import ChatPrompt, Prompt
from .errors import bad_field
from .fields import JsonObject
from .response_record import ResponseRecord
from .responses_fields import Message
from .responses_request import ResponseRequest

# What one message or token costs beside its characters; an estimate for the bounds of keeping.
MESSAGE_BYTES = 256
TOKEN_BYTES = 8


@attrs.frozen
class Conversation:
    """What was said, oldest first: messages, or token ids."""

    messages: Sequence[Message] = ()
    token_ids: Sequence[int] | None = None

    @property
    def size_bytes(self) -> int:
        """An estimate of what it takes to keep it."""
        texts = sum(len(message["content"]) + MESSAGE_BYTES for message in self.messages)
        return texts + TOKEN_BYTES * len(self.token_ids or ())


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
        ids = request.options.input_token_ids or []
        return Conversation((), [*before.token_ids, *ids])
    return Conversation([*before.messages, *request.input])


def prompt_of(conversation: Conversation, instructions: str | None) -> Prompt:
    """What the model is given."""
    if conversation.token_ids is not None:
        return conversation.token_ids
    system = [] if instructions is None else [{"role": "system", "content": instructions}]
    return ChatPrompt([*system, *conversation.messages])


def with_output(conversation: Conversation, record: ResponseRecord) -> Conversation:
    """The conversation with what the response said."""
    if not record.events.request.generate:
        return conversation
    if conversation.token_ids is not None:
        return Conversation((), [*conversation.token_ids, *(record.token_ids or ())])
    answer = {"role": "assistant", "content": record.text}
    return Conversation([*conversation.messages, answer])


def input_items(conversation: Conversation, response_id: str) -> list[JsonObject]:
    """What a response was asked, as items of OpenAI's API, oldest first; token ids have none."""
    suffix = response_id.removeprefix("resp_")
    return [
        {
            "id": f"msg_{index}_{suffix}",
            "type": "message",
            "role": message["role"],
            "status": "completed",
            "content": [_part(message)],
        }
        for index, message in enumerate(conversation.messages)
    ]


def _part(message: Message) -> JsonObject:
    text = message["content"]
    if message["role"] == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}
