"""Reads the body of a Responses request, over HTTP or as a `response.create` event.

Sans-IO: a JSON object in, `ResponseRequest` or a typed `ApiError` that names the field out. Must
not know sockets or lanes beyond the name of one. OpenAI's fields and their defaults are here only.
"""

import math
import re
from typing import Any

import attrs

from ..engine.sampling_params import TOKENS_MAX, SamplingParams
from .errors import ApiError, bad_field
from .fields import Fields, JsonObject
from .limits import MERGE_MS_MAX
from .prompt_fields import (
    RUNTIME,
    RuntimeOptions,
    present,
    read_message,
    read_model,
    refuse_unserved,
    sampling_params,
    split_runtime,
)
from .schema import (
    Body,
    Field,
    Harmless,
    Integer,
    Nested,
    Number,
    is_empty,
    never,
    one_of,
)

STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}", re.ASCII)
# OpenAI's bounds on metadata.
METADATA_PAIRS_MAX = 16
METADATA_KEY_CHARACTERS_MAX = 64
METADATA_VALUE_CHARACTERS_MAX = 512
# OpenAI's bound in its Realtime protocol, which has these ids.
EVENT_ID_CHARACTERS_MAX = 512
# A day; whoever wants longer wants no deadline.
DEADLINE_MS_MAX = 86_400_000
# A day as well; the server's own limit is told with its name.
KEEP_S_MAX = 86_400.0
RUNTIME_FIELD = Field(
    Nested(
        Body(
            {
                **RUNTIME.fields,
                "deadline_ms": Field(
                    Integer(minimum=1, maximum=DEADLINE_MS_MAX),
                    "When the response must have ended, from its arrival; incomplete otherwise.",
                ),
                "keep_s": Field(
                    Number(minimum=0, maximum=KEEP_S_MAX),
                    "So long it goes on without a reader; without, it is aborted.",
                ),
                "merge_ms": Field(
                    Integer(minimum=0, maximum=MERGE_MS_MAX),
                    "So long text may wait for more, to be one event; the first and the last do not"
                    " wait. The server's setting when absent, usually 0.",
                ),
                "credit": Field(
                    Integer(minimum=0, maximum=TOKENS_MAX),
                    "Generate so many tokens, and what `runtime.credit` events add.",
                ),
            },
            strict=True,
        )
    ),
    "Our extensions, all opt-in.",
)
CREDIT_EVENT = Body(
    {"add": Field(Integer(minimum=0, maximum=TOKENS_MAX), "So many tokens more.", required=True)}
)
Message = dict[str, Any]
# How `SamplingParams` calls what this protocol calls otherwise.
FIELD_NAMES = {
    "max_tokens": "max_output_tokens",
    "min_tokens": "runtime.min_tokens",
    "top_k": "runtime.top_k",
    "min_p": "runtime.min_p",
    "seed": "runtime.seed",
    "stop": "runtime.stop",
    "stop_token_ids": "runtime.stop_token_ids",
}


def _asks_no_logprobs(value: object) -> bool:
    return not (isinstance(value, list) and "message.output_text.logprobs" in value)


def _asks_plain_text(value: object) -> bool:
    if not isinstance(value, dict):
        return True  # a wrong type is told by `_read_text`
    wanted = value.get("format")
    return wanted is None or (isinstance(wanted, dict) and wanted.get("type") in (None, "text"))


_UNSERVED: dict[str, tuple[Harmless, str]] = {
    "tools": (is_empty, "tools are not served"),
    "tool_choice": (one_of("auto", "none"), "tools are not served"),
    "conversation": (never, "conversations are not kept; send the whole conversation"),
    "prompt": (never, "stored prompts are not served; send `input`"),
    "truncation": (one_of("disabled"), "nothing is dropped from the input; shorten it"),
    "text": (_asks_plain_text, "only the format `text` is served"),
    "include": (_asks_no_logprobs, "logprobs are not served"),
    "top_logprobs": (is_empty, "logprobs are not served"),
    "context_management": (is_empty, "nothing is compacted; send the conversation as wanted"),
    "moderation": (never, "nothing is moderated here"),
}


@attrs.frozen(kw_only=True)
class Keeping:
    """When this response must have ended, how long it may go on without a reader, how far without
    being granted more, and how soon it is told.

    `deadline_s` is on the clock of whoever read the request; 0 for `keep_s` means to abort at once.
    `credit` is in tokens; None: to its end. Text may wait for more for `merge_s`; None: as the
    server has it.
    """

    deadline_s: float = math.inf
    keep_s: float = 0.0
    credit: int | None = None
    merge_s: float | None = None


@attrs.frozen(kw_only=True)
class ResumeRequest:
    """`response.resume` on a socket: go on reading a response, in this lane."""

    response_id: str
    starting_after: int | None = None
    stream_id: str | None = None


@attrs.frozen(kw_only=True)
class ResponseRequest:
    """One validated request. What is only echoed back to the client is kept as it came."""

    # Messages as the chat template takes them; none when the input is token ids.
    input: list[Message]
    sampling: SamplingParams
    stream: bool = False
    stream_id: str | None = None  # the lane; None is the default lane, and HTTP
    options: RuntimeOptions = attrs.field(factory=RuntimeOptions)
    keeping: Keeping = attrs.field(factory=Keeping)
    instructions: str | None = None
    metadata: dict[str, str] = attrs.field(factory=dict)
    previous_response_id: str | None = None
    # Without output: the prompt is computed, so that a next one finds its prefix cached.
    generate: bool = True
    # Goes on without anybody who reads.
    background: bool = False
    # Kept after its end, for whoever has its id; otherwise only its own socket may continue it.
    store: bool = True

    @property
    def is_token_ids(self) -> bool:
        """Whether the input is token ids; so is then the whole conversation."""
        return self.options.input_token_ids is not None

    @property
    def keeps_token_ids(self) -> bool:
        """Whether the output's ids are wanted, now or when the conversation goes on."""
        return self.options.token_ids or self.is_token_ids


def read_stream_id(values: JsonObject) -> str | None:
    """The lane of a socket event. Raises `ApiError` `invalid_stream_id`."""
    stream_id = values.get("stream_id")
    if stream_id is None:
        return None
    if not isinstance(stream_id, str) or STREAM_ID.fullmatch(stream_id) is None:
        raise ApiError(
            400,
            "stream_id must be 1 to 256 ASCII letters, digits, underscores, hyphens or periods",
            "invalid_stream_id",
            param="stream_id",
        )
    return stream_id


def read_event_id(values: JsonObject) -> str | None:
    """The client's own name of a socket event, told in an error about it. Raises `ApiError`."""
    event_id = Fields(values).string("event_id")
    if event_id is not None and len(event_id) > EVENT_ID_CHARACTERS_MAX:
        raise bad_field("event_id", f"has over {EVENT_ID_CHARACTERS_MAX} characters")
    return event_id


def read_response_request(values: JsonObject, *, model: str, now: float = 0.0) -> ResponseRequest:
    """Validate one body; `model` is the served one, `now` what a deadline counts from.

    Raises `ApiError`.
    """
    fields = Fields(values)
    stream_id = read_stream_id(values)
    read_model(fields, model)
    refuse_unserved(fields, _UNSERVED)
    fields.nested("text")
    runtime = _read_runtime(fields)
    options, extensions = split_runtime(runtime)
    instructions = fields.string("instructions")
    sampling = sampling_params(
        {
            **present(
                {
                    "max_tokens": fields.integer("max_output_tokens"),
                    "temperature": fields.number("temperature"),
                    "top_p": fields.number("top_p"),
                }
            ),
            **extensions,
        },
        FIELD_NAMES,
    )
    request = ResponseRequest(
        input=[],
        sampling=sampling,
        stream=bool(fields.boolean("stream")),
        stream_id=stream_id,
        options=options,
        keeping=_keeping_of(runtime, now),
        instructions=instructions,
        metadata=_read_metadata(fields),
        previous_response_id=fields.string("previous_response_id"),
        generate=fields.boolean("generate") is not False,
        background=bool(fields.boolean("background")),
        store=fields.boolean("store") is not False,
    )
    _check_together(request)
    return attrs.evolve(request, input=_read_input(fields, request))


def _check_together(request: ResponseRequest) -> None:
    """Raise `ApiError` for fields that contradict each other."""
    if request.background and not request.store:
        raise bad_field("background", "needs `store`: who else would find the response?")
    if request.keeping.keep_s and not request.store:
        raise bad_field("runtime.keep_s", "needs `store`: who else would find the response?")


def read_resume_request(values: JsonObject) -> ResumeRequest:
    """Validate one `response.resume` event. Raises `ApiError`."""
    fields = Fields(values)
    response_id = fields.string("response_id")
    if response_id is None:
        raise bad_field("response_id", "is missing", "missing_required_parameter")
    return ResumeRequest(
        response_id=response_id,
        starting_after=fields.integer("starting_after"),
        stream_id=read_stream_id(values),
    )


def _read_runtime(fields: Fields) -> dict[str, Any]:
    value = fields.get("runtime")
    found: dict[str, Any] = {} if value is None else RUNTIME_FIELD.kind.read(value, "runtime")
    return found


def _keeping_of(runtime: dict[str, Any], now: float) -> Keeping:
    deadline_ms: int | None = runtime.get("deadline_ms")
    merge_ms: int | None = runtime.get("merge_ms")
    return Keeping(
        deadline_s=math.inf if deadline_ms is None else now + deadline_ms / 1000,
        keep_s=runtime.get("keep_s", 0.0),
        credit=runtime.get("credit"),
        merge_s=None if merge_ms is None else merge_ms / 1000,
    )


def read_credit(values: JsonObject) -> int:
    """The tokens that a `runtime.credit` event adds. Raises `ApiError`."""
    tokens: int = CREDIT_EVENT.read(values)["add"]
    return tokens


def _read_input(fields: Fields, request: ResponseRequest) -> list[Message]:
    """The new part of the conversation; may be empty when it continues an earlier one."""
    if request.options.input_token_ids is not None:
        if fields.get("input") is not None or request.instructions is not None:
            raise bad_field("runtime.input_token_ids", "replaces `input` and `instructions`")
        return []
    given = fields.get("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if given is None and request.previous_response_id is None:
        raise bad_field("input", "is missing", "missing_required_parameter")
    items = fields.objects("input") or []
    if not items and request.previous_response_id is None:
        raise bad_field("input", "must not be empty")
    messages = []
    for item in items:
        item_type = item.string("type")
        if item_type not in (None, "message"):
            raise bad_field(item.at("type"), "must be `message`", "unsupported_parameter")
        messages.append(read_message(item))
    return messages


def _read_metadata(fields: Fields) -> dict[str, str]:
    given = fields.nested("metadata")
    if given is None:
        return {}
    if len(given.values) > METADATA_PAIRS_MAX:
        raise bad_field("metadata", f"has over {METADATA_PAIRS_MAX} pairs")
    found = {}
    for name in given.values:
        value = given.string(name) or ""
        if len(name) > METADATA_KEY_CHARACTERS_MAX or len(value) > METADATA_VALUE_CHARACTERS_MAX:
            raise bad_field("metadata", "has a key or value that is too long")
        found[name] = value
    return found
