"""Typed requests of the Responses protocol, read from HTTP bodies and socket events.

Sans-IO: a JSON object in, `ResponseRequest` or a typed `ApiError` that names the field out. What is
accepted is in `responses_fields`; defaults are here only.
"""

import re
import sys
from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from ...engine.request_options import NO_OPTIONS, RequestOptions
from ...engine.sampling_params import TOKENS_MAX, SamplingParams
from ...runtime.text.answer_format import TEXT_ALONE, AnswerFormat
from ..errors import ApiError, bad_field
from ..schema.fields import TEXT, IntegerKind, JsonObject, ObjectFields
from ..schema.tables import Body, Field
from .fields.form_fields import form_of
from .fields.message_fields import Message
from .fields.option_fields import RANK, request_options, top_level_options
from .fields.responses_fields import (
    INCLUDE_LOGPROBS,
    REFERENCE,
    RESPONSES,
    check_model,
    check_together,
)
from .fields.sampling_fields import SAMPLING_FIELDS, sampling_arguments, sampling_params
from .template_arguments import Scalar, template_arguments
from .tool_use import ToolUse, tool_use_of

# Values of `truncation`.
AUTO, DISABLED = "auto", "disabled"
STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}", re.ASCII)
# OpenAI's bound in its Realtime protocol, which has these ids.
EVENT_ID_CHARACTERS_MAX = 512
CREDIT_EVENT = Body(
    {
        "add": Field(
            IntegerKind(minimum=0, maximum=TOKENS_MAX), "So many tokens more.", required=True
        )
    }
)
RESUME_EVENT = Body(
    {
        "response_id": Field(TEXT, "Which response.", required=True),
        "starting_after": Field(IntegerKind(minimum=0), "Only events after this sequence number."),
    }
)
# How `SamplingParams` calls the sampling fields of the top level.
_SAMPLING_NAMES = {
    "max_output_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
}
# How this protocol calls what `SamplingParams` calls otherwise.
FIELD_NAMES = {
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "engine": RANK,
    **{name: f"runtime.{name}" for name in SAMPLING_FIELDS},
}


@attrs.frozen(kw_only=True)
class ResumeRequest:
    """`response.resume` on a socket: go on reading a response, in this lane."""

    response_id: str
    starting_after: int | None = None
    stream_id: str | None = None


# Not frozen, though none is changed: that would take three times as long to make.
@attrs.define(kw_only=True)
class ResponseRequest:
    """Responses request, validated. Fields that are only echoed are kept as they came."""

    # Messages as the chat template takes them; none when the input is token ids.
    input: list[Message]
    sampling: SamplingParams
    stream: bool = False
    stream_id: str | None = None  # the lane; None is the default lane, and HTTP
    options: RequestOptions = NO_OPTIONS
    # When it came, by the clock of the reader's `now`: a deadline counts from then.
    came_at: float = 0.0
    # Seconds that it goes on without a reader; 0 means to abort at once.
    keep_s: float = 0.0
    # Deltas carry token ids and the index of the first.
    token_ids: bool = False
    # Replaces the text of the prompt.
    input_token_ids: list[int] | None = None
    instructions: str | None = None
    metadata: dict[str, str] = attrs.field(factory=dict)
    previous_response_id: str | None = None
    # False computes the prompt alone, so that a next request finds its prefix cached.
    generate: bool = True
    # Goes on without a reader.
    background: bool = False
    # Kept after its end, to be found by its id; otherwise only its own socket may continue it.
    store: bool = True
    # "auto": the oldest turns are dropped when the input is too long.
    truncation: str = DISABLED
    # The format as it came, for the response object.
    text_format: JsonObject = attrs.field(factory=lambda: {"type": "text"})
    # The field that asked for it; a refusal of the runtime names it.
    form_field: str = "text.format"
    tools: ToolUse = attrs.field(factory=ToolUse)
    # Effort and summary for the response object; and the chat template's arguments.
    reasoning: JsonObject = attrs.field(factory=lambda: _reasoning_of({}))
    template_arguments: dict[str, Scalar] | None = None
    # The body as it came, until it was written down: the same reader reads it in another process.
    values: JsonObject = attrs.field(factory=dict, repr=False, eq=False)

    @property
    def names(self) -> dict[str, str]:
        """How this request calls what `SamplingParams` calls otherwise; see `to_api_error`."""
        prompt = "runtime.input_token_ids" if self.is_token_ids else "input"
        return {**FIELD_NAMES, "structured_outputs": self.form_field, "prompt": prompt}

    @property
    def deadline_s(self) -> float:
        """Time by which it must have ended, by the clock of `came_at`."""
        return self.came_at + self.options.deadline_s

    @property
    def extra_bytes(self) -> int:
        """About what it takes to keep it, beside its input."""
        sampling, form = self.sampling, self.sampling.structured_outputs
        ids = len(sampling.stop_token_ids) + len(sampling.allowed_token_ids or ())
        ids += 2 * len(sampling.logit_bias)
        texts = (*sampling.stop, *sampling.bad_words, self.instructions or "")
        size = ids_bytes(ids) + sum(map(text_bytes, texts))
        size += 0 if form is None else text_bytes(form.text)
        return size + json_bytes((self.metadata, self.text_format, self.tools.objects))

    @property
    def is_token_ids(self) -> bool:
        """Whether the input is token ids; so is then the whole conversation."""
        return self.input_token_ids is not None

    @property
    def refers(self) -> bool:
        """Whether the input names items of kept responses, which are to be looked up."""
        return any(message["role"] == REFERENCE for message in self.input)

    @property
    def prompt_parts(self) -> tuple[str | None, ToolUse, dict[str, Scalar] | None]:
        """Parts of the prompt beside the conversation: see `history.prompt_of`."""
        return self.instructions, self.tools, self.template_arguments

    @property
    def is_parsed(self) -> bool:
        """Whether the output may have calls or reasoning; that of a computed prompt has none."""
        parts = self.tools.is_on or self.tools.answer_format.parts_reasoning
        return parts and self.generate

    @property
    def keeps_token_ids(self) -> bool:
        """Whether the output's ids are wanted, now or when the conversation goes on."""
        return self.token_ids or self.is_token_ids


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
    """The client's own name of a socket event, for an error about it. Raises `ApiError`."""
    event_id = ObjectFields(values).string("event_id")
    if event_id is not None and len(event_id) > EVENT_ID_CHARACTERS_MAX:
        raise bad_field("event_id", f"has over {EVENT_ID_CHARACTERS_MAX} characters")
    return event_id


def read_response_request(
    values: JsonObject,
    *,
    model: str,
    now: float = 0.0,
    answer_format: AnswerFormat = TEXT_ALONE,
) -> ResponseRequest:
    """Validate one body; `model` is the served one, `now` what a deadline counts from.

    The model answers in this format. Raises `ApiError`.
    """
    stream_id = read_stream_id(values)
    found = RESPONSES.read(values)
    check_model(found.get("model"), model)
    runtime = found.get("runtime", {})
    extensions = sampling_arguments(runtime)
    arguments = {ours: found[name] for name, ours in _SAMPLING_NAMES.items() if name in found}
    if found.get("top_logprobs") or INCLUDE_LOGPROBS in found.get("include", ()):
        arguments["logprobs"] = found.get("top_logprobs", 0)
    form = form_of({**found, **extensions}, ("structured_outputs", "text"))
    if form is not None:
        extensions["structured_outputs"] = form[1]
    form_field = "text.format" if "text" in found else "runtime.structured_outputs"
    tools = tool_use_of(found, answer_format)
    sampling = tools.readable(sampling_params({**arguments, **extensions}, FIELD_NAMES))
    constrained = tools.constrained(sampling, form_field)
    check_together(found)
    return ResponseRequest(
        input=found.get("input", []),
        sampling=constrained,
        stream=found.get("stream", False),
        stream_id=stream_id,
        options=request_options({**top_level_options(found, (RANK,)), **runtime}),
        came_at=now,
        keep_s=runtime.get("keep_s", 0.0),
        token_ids=runtime.get("token_ids", False),
        input_token_ids=runtime.get("input_token_ids"),
        instructions=found.get("instructions"),
        metadata=found.get("metadata", {}),
        previous_response_id=found.get("previous_response_id"),
        generate=found.get("generate", True),
        background=found.get("background", False),
        store=found.get("store", True),
        truncation=found.get("truncation", DISABLED),
        text_format=_text_format(values) if "text" in found else {"type": "text"},
        form_field=form_field if constrained is sampling else "tools",
        tools=tools,
        reasoning=_reasoning_of(found.get("reasoning", {})),
        template_arguments=template_arguments(_template_values(found), answer_format),
        values=values,
    )


def _reasoning_of(given: Mapping[str, Any]) -> JsonObject:
    """Reasoning for the response object."""
    summary = given.get("summary", given.get("generate_summary"))
    return {"effort": given.get("effort"), "summary": summary}


def _template_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """By the names that they have in chat."""
    effort = found.get("reasoning", {}).get("effort")
    runtime = found.get("runtime", {})
    names = ("chat_template_kwargs", "enable_thinking")
    return {"reasoning_effort": effort, **{n: runtime[n] for n in names if n in runtime}}


def _text_format(values: JsonObject) -> JsonObject:
    text = values["text"]
    assert isinstance(text, dict), "it has been read"
    given = text.get("format")
    return given if isinstance(given, dict) else {"type": "text"}


def read_resume_request(values: JsonObject) -> ResumeRequest:
    """Validate one `response.resume` event. Raises `ApiError`."""
    stream_id = read_stream_id(values)
    return ResumeRequest(**RESUME_EVENT.read(values), stream_id=stream_id)


def read_credit(values: JsonObject) -> int:
    """The tokens that a `runtime.credit` event adds. Raises `ApiError`."""
    tokens: int = CREDIT_EVENT.read(values)["add"]
    return tokens


# ---- memory estimates: a little too high, since a bound on memory is made of them

# A number of its own, and its place in each of the three lists that a conversation's ids are in.
TOKEN_ID_BYTES = 56
# A short text, number or pair in a parsed object takes so much more than it does as JSON.
JSON_FACTOR = 10


def text_bytes(text: str) -> int:
    """A text's memory; a character takes one byte to four."""
    return sys.getsizeof(text)


def ids_bytes(count: int) -> int:
    """Memory of so many token ids, as Python numbers in lists."""
    return TOKEN_ID_BYTES * count


def json_bytes(value: object) -> int:
    """Memory of a parsed JSON object, whatever is in it."""
    return JSON_FACTOR * len(msgspec.json.encode(value))
