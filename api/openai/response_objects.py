"""Objects within a response: items, their content, and the usage.

Sans-IO: builds values.
"""

from ...runtime.text.outputs import Usage
from ..schema.fields import JsonObject
from .logprobs import Entry
from .tool_use import ToolOrigin


def text_part(text: str, logprobs: list[Entry]) -> JsonObject:
    """The content of an assistant's message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def message_object(
    item_id: str, role: str, content: list[JsonObject], status: str = "completed"
) -> JsonObject:
    """A message among the items of a response."""
    head = {"id": item_id, "type": "message", "role": role}
    return {**head, "status": status, "content": content}


def reasoning_object(item_id: str, parts: JsonObject, status: str = "completed") -> JsonObject:
    """Reasoning among the items of a response, as content or as a summary."""
    return {"id": item_id, "type": "reasoning", "summary": [], **parts, "status": status}


def call_object(
    item_id: str, call_id: str, origin: ToolOrigin, text: str, *, status: str = "completed"
) -> JsonObject:
    """A call among the items of a response; `text` is its arguments, or its input."""
    kind, name = ("function_call", "arguments")
    if origin.is_custom:
        kind, name = "custom_tool_call", "input"
    head = {"id": item_id, "type": kind, "status": status}
    return {**head, "call_id": call_id, **origin.named, name: text}


def usage_object(usage: Usage, output_tokens: int, reasoning_tokens: int) -> JsonObject:
    """Token counts as Responses have them."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.prompt_tokens + output_tokens,
    }
