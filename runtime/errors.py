"""Errors of the floor between an API and the engines, beside those of `engine.errors`.

    EngineError                       (engine.errors: all of ours derive from it, one `except` does)
     +-- InvalidRequest               the client must change the request
     |    +-- RequestIdInUse          another live request has this id
     |    +-- PromptRefused           an engine takes less than we believed
     |    +-- ChatTemplateMissing     the model has no chat template: send text or token ids
     |    +-- RequestQuarantined      processes died of it; refused for a while
     |    +-- JournalStreamTooLarge   what it may need of the journal is more than one may
     |    +-- ChatTemplateRefused     the template refused these messages
     |    +-- TextRefused             the tokenizer's library failed at this text
     +-- ModelFolderError
     |    +-- ChatTemplateBroken      the model's template does not compile
     +-- ModelNotFetched              a model of the hub is not to be had
     +-- Overloaded                   a limit of ours is reached; come back after `retry_after_s`
     +-- FormsUnavailable             no form can be checked now
     +-- NoEngine                     no engine can take work now
     |    +-- ServerDraining          nor is one to, for this frontend
     +-- RuntimeClosed                the block of `open_runtime` has been left
     +-- RequestFailed                the engine ended this one request with an error
     +-- ProcessingFailed             turning its tokens into text failed here
     +-- UtilityFailed                an engine did not answer a utility call

`Overloaded` against `NoEngine`: the first is a limit doing its work while everything is healthy,
the second an outage. `RequestFailed` against `EngineDied`: in the first the engine lives on.
`code` and `retryable` decide what an HTTP client is answered.
"""

from typing import ClassVar

import attrs

from ..engine.errors import EngineError, InvalidRequest, ModelFolderError, PromptTooLong

# Pulled out of the air: about the time in which a small model finishes some requests.
RETRY_AFTER_S = 1.0


@attrs.frozen
class RequestIdInUse(InvalidRequest):
    """Another live request of this frontend has the id; ids may be used again after the end."""

    code: ClassVar[str] = "request_id_in_use"
    sentence: ClassVar[str] = (
        "a request with the id {self.request_id!r} is in flight; choose another id"
    )
    request_id: str


@attrs.frozen
class PromptRefused(InvalidRequest):
    """An engine found the prompt too long, after all; `reason` is its own sentence.

    `PromptTooLong`, with its numbers, is what we find ourselves.
    """

    code: ClassVar[str] = PromptTooLong.code
    sentence: ClassVar[str] = "{self.reason}"
    reason: str


@attrs.frozen
class RequestQuarantined(InvalidRequest):
    """Processes died of this content of this principal; it is refused until that is forgotten."""

    code: ClassVar[str] = "request_quarantined"
    sentence: ClassVar[str] = (
        "processes of the server died while they worked on this, so it is refused for"
        " {self.seconds:.0f} s; do not send it again before, and report it to the operator"
    )
    seconds: float


@attrs.frozen
class JournalStreamTooLarge(InvalidRequest):
    """A request's tokens and logprobs could need more of the journal than one stream may."""

    code: ClassVar[str] = "journal_stream_too_large"
    sentence: ClassVar[str] = (
        "this request may need {self.needed_bytes} bytes of the journal, more than"
        " {self.bytes_max}; ask for fewer tokens, logprobs or embeddings"
    )
    needed_bytes: int
    bytes_max: int


@attrs.frozen
class ChatTemplateMissing(InvalidRequest):
    """A conversation was sent to a model whose folder has no chat template.

    Clients see the sentence, so it does not name the folder.
    """

    code: ClassVar[str] = "chat_template_missing"
    sentence: ClassVar[str] = (
        "the model has no chat template (chat_template.jinja, or chat_template in"
        " tokenizer_config.json), and the server was given none (--chat-template); send the prompt"
        " as text or as token ids"
    )


@attrs.frozen
class ChatTemplateRefused(InvalidRequest):
    """The template raised for these messages; `reason` is what it said."""

    code: ClassVar[str] = "chat_template_refused"
    sentence: ClassVar[str] = "the model's chat template refused the messages: {self.reason}"
    reason: str


@attrs.frozen
class TextRefused(InvalidRequest):
    """The library of the model's tokenizer failed at what was sent, and would again."""

    code: ClassVar[str] = "text_refused"
    sentence: ClassVar[str] = (
        "this model's tokenizer failed at the {self.field}: {self.reason}. Send another text"
    )
    field: str
    reason: str


class ChatTemplateTooCostly(ChatTemplateRefused):
    """Rendering took more time or memory than it was given; it may do with more."""


@attrs.frozen
class ChatTemplateBroken(ModelFolderError):
    """The template of the model folder does not compile: which path, and where in it."""

    code: ClassVar[str] = "chat_template_broken"
    sentence: ClassVar[str] = (
        "{self.path}: {self.reason}. Correct it, give another one (--chat-template), or choose"
        " another model"
    )


@attrs.frozen
class ModelNotFetched(EngineError):
    """A model of the hub cannot be downloaded, and is not in the cache: `reason` says why."""

    code: ClassVar[str] = "model_not_fetched"
    sentence: ClassVar[str] = "{self.model}: {self.reason}"
    model: str
    reason: str


@attrs.frozen
class Overloaded(EngineError):
    """A limit is reached. `limit` names the setting; try again after `retry_after_s` seconds."""

    code: ClassVar[str] = "overloaded"
    retryable: ClassVar[bool] = True
    sentence: ClassVar[str] = "{self.limit} is reached; try again in {self.retry_after_s:.1f} s"
    retry_after_s: float = RETRY_AFTER_S
    limit: str = "active_requests_max"


@attrs.frozen
class FormsUnavailable(EngineError):
    """The form of an answer (schema, regex, grammar) cannot be checked now; `reason` says why."""

    code: ClassVar[str] = "forms_unavailable"
    retryable: ClassVar[bool] = True
    sentence: ClassVar[str] = "the form of the answer cannot be checked now: {self.reason}"
    reason: str


@attrs.frozen
class NoEngine(EngineError):
    """No engine can take work now; `reason` says what they are doing instead."""

    code: ClassVar[str] = "no_engine"
    retryable: ClassVar[bool] = True
    sentence: ClassVar[str] = "{self.reason}; try again in {self.retry_after_s:.1f} s"
    reason: str = "no engine is ready"
    retry_after_s: float = RETRY_AFTER_S


@attrs.frozen
class ServerDraining(NoEngine):
    """This frontend serves what is in flight and takes nothing new."""

    code: ClassVar[str] = "server_draining"
    reason: str = "this server is draining"


@attrs.frozen
class RuntimeClosed(EngineError):
    """A runtime was used after its `open_runtime` block."""

    code: ClassVar[str] = "runtime_closed"
    sentence: ClassVar[str] = "this runtime is closed: the block of `open_runtime` has been left"


@attrs.frozen
class LLMClosed(EngineError):
    """An `LLM` was used after it was closed."""

    code: ClassVar[str] = "runtime_closed"
    sentence: ClassVar[str] = "this LLM is closed; make another one"


@attrs.frozen
class RequestFailed(EngineError):
    """The engine ended this request with an error and serves on; `reason` is the engine's text."""

    code: ClassVar[str] = "request_failed"
    sentence: ClassVar[str] = "request {self.request_id} failed: {self.reason}"
    request_id: str
    reason: str


@attrs.frozen
class RunNotFound(Exception):
    """No running server, or not exactly one, matches; `running` has a line for each there is."""

    named: str
    running: tuple[str, ...]

    def __str__(self) -> str:
        if not self.running:
            return "no server of this user is running; start one with `triolet serve`"
        fault = f"not exactly one is, or begins with, {self.named!r}: " if self.named else ""
        ask = f"{fault}name one of the running servers by its port, its address or its id:"
        return "\n  ".join((ask, *self.running))


@attrs.frozen
class NoEngineLeft(Exception):
    """Every engine died too often and was given up; the run cannot serve any more."""

    cause: str

    def __str__(self) -> str:
        return f"no engine is left: {self.cause}"


@attrs.frozen
class NoFrontendLeft(Exception):
    """Every frontend was given up; the run cannot be reached any more."""

    cause: str

    def __str__(self) -> str:
        return f"no frontend is left: {self.cause}"


@attrs.frozen
class PortInUse(Exception):
    """The address is taken, or not ours to bind; `reason` is the system's word for it."""

    host: str
    port: int
    reason: str

    def __str__(self) -> str:
        return (
            f"cannot listen on {self.host}:{self.port}: {self.reason}."
            " Choose another --host or --port (port 0: whichever is free)"
        )


@attrs.frozen
class JoinRefusedByHead(Exception):
    """A head does not let this host in, for the one fact that `reason` names."""

    head: str
    reason: str

    def __str__(self) -> str:
        return f"the head at {self.head} does not let this host in: {self.reason}"


@attrs.frozen
class ControlCallRefused(Exception):
    """The root of a server does not do what was asked; `reason` is a sentence, `code` a name."""

    reason: str
    code: str = "place_not_found"

    def __str__(self) -> str:
        return self.reason


@attrs.frozen
class UtilityFailed(EngineError):
    """An engine did not answer a utility call: it erred, died, or took too long."""

    code: ClassVar[str] = "utility_failed"
    retryable: ClassVar[bool] = True
    sentence: ClassVar[str] = "{self.engine} did not answer: {self.reason}"
    engine: str
    reason: str


@attrs.frozen
class ProcessingFailed(EngineError):
    """Turning one request's tokens into text failed here: a bug of ours, contained to it."""

    code: ClassVar[str] = "internal_error"
    sentence: ClassVar[str] = "request {self.request_id} could not be processed: {self.reason}"
    request_id: str
    reason: str
