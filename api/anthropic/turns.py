"""Conversation of the Messages protocol, read block by block into messages of a chat template.

Sans-IO: JSON values in, `MessageTurns` or `ApiError` out. What templates do not know becomes what
they do: results of tools are messages of their own, texts of one turn are joined, and so are
turns of the user that follow each other. A message of the role `system`, which Claude Code sends,
is part of the system prompt before the first answer; later it is text of the user's turn, as many
templates refuse it there.
"""

import base64
import binascii
import re

import attrs

from ...runtime.text.call_arguments import shown_arguments
from ..errors import ApiError, bad_field, unsupported
from ..openai.fields.message_fields import MESSAGES_MAX, Message
from ..openai.message_schema import PARTS_MAX
from ..openai.template_arguments import with_reasoning
from ..schema.fields import (
    FunctionKind,
    JsonObject,
    ObjectFields,
    missing,
    read_array,
    read_objects,
    wrong_type,
)

# Anthropic's rule for names of tools.
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}", re.ASCII)
# Begins what stands in for Anthropic's signature of a `thinking` block. Where its text is omitted,
# the text follows, in base64: the client sends it back with the next turn.
SIGNATURE = "triolet."
# The first block of Claude Code's system prompt, of no use to a model: it may differ from request
# to request, and no cached prefix would be found again behind it.
_BILLING = "x-anthropic-billing-header"
_OPENING, _CLOSING = "<system-reminder>", "</system-reminder>"


@attrs.define
class MessageTurns:
    """A conversation, and the tools that it has made known or has withdrawn."""

    messages: list[Message] = attrs.field(factory=list)
    # Texts of the system before the first answer.
    system: list[str] = attrs.field(factory=list)
    # {name of a tool: whether it is offered}, as the last block about it says.
    offered: dict[str, bool] = attrs.field(factory=dict)

    def add(self, message: ObjectFields) -> None:
        """The next message. Raises `ApiError`."""
        match message.required("role"):
            case "user":
                self._add_user(message)
            case "assistant":
                self.messages.append(_read_answer(message))
            case "system":
                self._add_system(message)
            case _:
                raise bad_field(message.at("role"), "must be user, assistant or system")

    def _add_user(self, message: ObjectFields) -> None:
        texts: list[str] = []
        blocks = message.read("content", _read_blocks)
        if not blocks:
            raise bad_field(message.at("content"), "must have at least one block, or text")
        for block in blocks:
            match block.required("type"):
                case "text":
                    texts.append(block.required("text"))
                case "tool_result":
                    self.messages.append(self._read_result(block))
                case _:
                    raise _unknown(block, "`text` and `tool_result` are")
        self._add_text(texts)

    def _add_system(self, message: ObjectFields) -> None:
        texts: list[str] = []
        # A message with an `output_config` alone is ignored.
        for block in message.read("content", _read_blocks) or ():
            match block.required("type"):
                case "text":
                    texts.append(block.required("text"))
                case ("tool_addition" | "tool_removal") as change:
                    self._offer(block, is_offered=change == "tool_addition")
                case _:
                    raise _unknown(block, "`text`, `tool_addition` and `tool_removal` are")
        if any(each["role"] == "assistant" for each in self.messages):
            self._add_text([f"{_OPENING}\n{text}\n{_CLOSING}" for text in texts])
        else:
            self.system += texts

    def _offer(self, block: ObjectFields, *, is_offered: bool) -> None:
        tool = block.nested("tool")
        if tool is None:
            raise missing(block.at("tool"))
        if tool.string("type") != "tool_reference":
            raise unsupported(tool.at("type"), "must be `tool_reference`")
        self.offered[read_tool_name(tool)] = is_offered

    def _add_text(self, texts: list[str]) -> None:
        if not texts:
            return
        if self.messages and self.messages[-1]["role"] == "user":
            texts = [self.messages.pop()["content"], *texts]
        self.messages.append({"role": "user", "content": "\n".join(texts)})

    def _read_result(self, result: ObjectFields) -> Message:
        texts: list[str] = []
        for block in result.read("content", _read_blocks) or ():
            match block.required("type"):
                case "text":
                    texts.append(block.required("text"))
                case "tool_reference":
                    name = read_tool_name(block, "tool_name")
                    self.offered[name] = True
                    texts.append(f"The tool {name} can be called now.")
                case _:
                    raise _unknown(block, "`text` and `tool_reference` are")
        return {
            "role": "tool",
            "content": "\n".join(texts),
            "tool_call_id": result.required("tool_use_id"),
        }


def _read_answer(message: ObjectFields) -> Message:
    texts: list[str] = []
    calls: list[JsonObject] = []
    thoughts: list[str] = []
    for block in message.read("content", _read_blocks) or ():
        match block.required("type"):
            case "text":
                texts.append(block.required("text"))
            case "thinking":
                thoughts.append(_read_thinking(block))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_read_call(block))
            case _:
                raise _unknown(block, "`text`, `thinking` and `tool_use` are")
    answer: Message = {"role": "assistant", "content": "\n".join(texts)}
    if calls:
        answer["tool_calls"] = calls
    return with_reasoning(answer, "\n".join(filter(None, thoughts)))


def _read_thinking(block: ObjectFields) -> str:
    """Text of thinking, or of its signature if that is ours."""
    text, signature = block.required("thinking"), block.string("signature") or ""
    if text or not signature.startswith(SIGNATURE):
        return text
    try:
        return base64.b64decode(signature.removeprefix(SIGNATURE), validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise bad_field(block.at("signature"), "is not one of this server") from None


def signature_of(text: str) -> str:
    """A signature that holds the text of a `thinking` block."""
    return SIGNATURE + base64.b64encode(text.encode()).decode()


def _read_call(block: ObjectFields) -> JsonObject:
    arguments = block.nested("input")
    if arguments is None:
        raise missing(block.at("input"))
    try:
        shown = shown_arguments(dict(arguments.values))
    except ValueError as error:
        raise bad_field(arguments.path, str(error)) from None
    function = {"name": block.required("name"), "arguments": shown}
    return {"type": "function", "function": function, "id": block.required("id")}


def read_tool_name(fields: ObjectFields, field: str = "name") -> str:
    """The name of a tool. Raises `ApiError`."""
    name = fields.required(field)
    if NAME.fullmatch(name) is None:
        reason = "must be 1 to 128 ASCII letters, digits, underscores, hyphens"
        raise bad_field(fields.at(field), reason)
    return name


def _unknown(block: ObjectFields, known: str) -> ApiError:
    kind = block.required("type")[:100]
    return unsupported(block.at("type"), f"blocks of the type {kind!r} are not served; {known}")


def _read_blocks(content: object, path: str) -> list[ObjectFields]:
    """Read blocks of an array; a string is a block of text."""
    if isinstance(content, str):
        return [ObjectFields({"type": "text", "text": content}, path)]
    if not isinstance(content, list):
        raise wrong_type(path, "a string or an array of blocks", content)
    return list(read_objects(content, path, items_max=PARTS_MAX, noun="blocks"))


def _read_turns(value: object, path: str) -> MessageTurns:
    if not 1 <= len(read_array(value, path)) <= MESSAGES_MAX:
        raise bad_field(path, f"must not be empty, and have at most {MESSAGES_MAX} messages")
    turns = MessageTurns()
    for message in read_objects(value, path):
        turns.add(message)
    if not turns.messages:
        raise bad_field(path, "must have a message of the user")
    if turns.messages[-1]["role"] == "assistant":
        reason = "must end with the user's turn: an answer that is begun (prefill) is not served"
        raise unsupported(path, reason)
    return turns


def _read_system(value: object, path: str) -> list[str]:
    found = []
    for block in _read_blocks(value, path):
        if block.required("type") != "text":
            raise _unknown(block, "`text` is")
        found.append(block.required("text"))
    return [text for text in found if not text.startswith(_BILLING)]


_TEXT: JsonObject = {"type": "string"}
# Schemas of a tool.
NAME_SCHEMA: JsonObject = {"type": "string", "pattern": f"^{NAME.pattern}$"}


def object_schema(required: JsonObject, **others: JsonObject) -> JsonObject:
    """Schema of an object with these fields, and perhaps the others."""
    return {"type": "object", "properties": {**required, **others}, "required": [*required]}


def _blocks(*kinds: JsonObject, least: int = 0) -> JsonObject:
    items = {"anyOf": list(kinds)}
    return {
        "anyOf": [
            _TEXT,
            {"type": "array", "minItems": least, "maxItems": PARTS_MAX, "items": items},
        ]
    }


_TEXT_BLOCK = object_schema({"type": {"const": "text"}, "text": _TEXT})
_RESULT = object_schema(
    {"type": {"const": "tool_result"}, "tool_use_id": _TEXT},
    content=_blocks(
        _TEXT_BLOCK, object_schema({"type": {"const": "tool_reference"}, "tool_name": NAME_SCHEMA})
    ),
)
_THINKING = object_schema({"type": {"const": "thinking"}, "thinking": _TEXT}, signature=_TEXT)
_REDACTED = object_schema({"type": {"const": "redacted_thinking"}})
_CALL = object_schema(
    {"type": {"const": "tool_use"}, "id": _TEXT, "name": _TEXT, "input": {"type": "object"}}
)
_CHANGE = object_schema(
    {
        "type": {"enum": ["tool_addition", "tool_removal"]},
        "tool": object_schema({"type": {"const": "tool_reference"}, "name": NAME_SCHEMA}),
    }
)
_MESSAGE: JsonObject = {
    "anyOf": [
        object_schema(
            {"role": {"const": "user"}, "content": _blocks(_TEXT_BLOCK, _RESULT, least=1)}
        ),
        object_schema(
            {"role": {"const": "assistant"}},
            content=_blocks(_TEXT_BLOCK, _THINKING, _REDACTED, _CALL),
        ),
        object_schema({"role": {"const": "system"}}, content=_blocks(_TEXT_BLOCK, _CHANGE)),
    ]
}
# The kinds of `messages` and `system`.
TURNS = FunctionKind(
    _read_turns,
    {"type": "array", "minItems": 1, "maxItems": MESSAGES_MAX, "items": _MESSAGE},
)
SYSTEM = FunctionKind(_read_system, _blocks(_TEXT_BLOCK))
