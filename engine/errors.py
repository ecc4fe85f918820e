"""Errors that cross the engine's public face, each with a stable code and a hint whether to retry.

    EngineError
     +-- InvalidRequest           the request is at fault; sending it again changes nothing
     |    +-- InvalidParameter    one field is out of range
     |    +-- PromptTooLong       prompt and answer do not fit the model's length
     +-- OutputFailed             this request's next token could not be chosen
     +-- EngineDied               the engine is at fault; sending it again may succeed
     +-- EngineDraining           the engine serves what it has and takes nothing new
     +-- RequestRecalled          the engine has given it back before it began
     +-- StepFailed               a worker raised in a step; the engine dies of it
     +-- StepTimeout              a step had no answer in time; the engine dies of it
     +-- WorkersDisagree          the workers of one engine would compute differently
     +-- PromiseBroken            new workers cannot go on where dead ones were
     +-- BootRefused              a process of ours cannot start, and none in its place could
     +-- ModelFolderError         the model folder cannot be served; names the file and the way out
          +-- NotAModelFolder     there is no model at that path: nothing there, a file, no config

`code` is what clients see; `retryable` decides between a 4xx and a 503.
"""

from typing import ClassVar, Final

import attrs


class EngineError(Exception):
    """Base of everything the engine's public face raises. Not raised itself."""

    code: ClassVar[str] = "engine_error"
    retryable: ClassVar[bool] = False
    # Message with the error's fields; without one it is what the error was raised with.
    sentence: ClassVar[str] = ""

    def __str__(self) -> str:
        return self.sentence.format(self=self) if self.sentence else super().__str__()


class InvalidRequest(EngineError):
    """The request cannot be served as it is; the client must change it."""

    code = "invalid_request"


@attrs.frozen
class InvalidParameter(InvalidRequest):
    """Field that is out of range. `parameter` is its name as in `SamplingParams`."""

    code: ClassVar[str] = "invalid_parameter"
    sentence: ClassVar[str] = "{self.parameter} {self.reason}"
    parameter: str
    reason: str


@attrs.frozen
class PromptTooLong(InvalidRequest):
    """Prompt tokens plus at least one token of answer exceed the model's length (in tokens)."""

    code: ClassVar[str] = "context_length_exceeded"
    prompt_tokens: int
    max_model_len: int
    # Tokenising was stopped when so much was sure.
    at_least: bool = False

    def __str__(self) -> str:
        at_least = "at least " if self.at_least else ""
        return (
            # OpenAI's own words, by which LiteLLM, aider and others know what to do.
            f"This model's maximum context length is {self.max_model_len} tokens. However, your"
            f" prompt resulted in {at_least}{self.prompt_tokens} tokens, and an answer has at"
            " least one. Shorten the prompt"
        )


@attrs.frozen
class OutputFailed(EngineError):
    """The request cannot go on: its parameters leave no token to choose, or a limit was reached."""

    code: ClassVar[str] = "output_failed"
    sentence: ClassVar[str] = "the output cannot go on: {self.reason}"
    reason: str


@attrs.frozen
class EngineDied(EngineError):
    """The engine that served the request is gone. `cause` names signal, exit code or exception.

    `sequel` says why no other engine went on with it.
    """

    code: ClassVar[str] = "engine_died"
    retryable: ClassVar[bool] = True
    engine: str
    cause: str
    sequel: str = ""

    def __str__(self) -> str:
        sequel = f", and {self.sequel}" if self.sequel else ""
        cause = self.cause.removeprefix("was ")
        return f"{self.engine} died: {cause}{sequel}. The request may be sent again"


@attrs.frozen
class EngineDraining(EngineError):
    """The engine began to drain before this request reached it; another one may take it."""

    code: ClassVar[str] = "engine_draining"
    retryable: ClassVar[bool] = True
    sentence: ClassVar[str] = (
        "this engine takes no new requests: it is about to stop. Send the request again"
    )


@attrs.frozen
class RequestRecalled(EngineError):
    """Recalled from this engine's queue by its frontend; another engine has less to do."""

    code: ClassVar[str] = "request_recalled"
    retryable: ClassVar[bool] = True
    sentence: ClassVar[str] = (
        "it was called back from one engine's queue, and none took it. Send the request again"
    )


# {code: its error}. An engine that ends a request so has not begun it; another one may.
NOT_BEGUN: Final[dict[str, type[EngineError]]] = {
    error.code: error for error in (EngineDraining, RequestRecalled)
}


@attrs.frozen
class StepFailed(EngineError):
    """A worker raised while it computed a step; `traceback` is its text, `rank` the worker's."""

    code: ClassVar[str] = "step_failed"
    retryable: ClassVar[bool] = True
    sentence: ClassVar[str] = "worker {self.rank} failed in step {self.step}:\n{self.traceback}"
    step: int
    rank: int
    traceback: str


@attrs.frozen
class StepTimeout(EngineError):
    """No answer to step `step` within `timeout_s` seconds; `ranks` are the workers that owe it."""

    code: ClassVar[str] = "step_timeout"
    retryable: ClassVar[bool] = True
    step: int
    timeout_s: float
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.ranks))
        return f"step {self.step} had no answer within {self.timeout_s:g} s from worker {ranks}"


@attrs.frozen
class WorkersDisagree(EngineError):
    """Workers of one engine would compute differently: other files, code or machine."""

    code: ClassVar[str] = "workers_disagree"
    numerics_ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"the workers have different numerics: {', '.join(self.numerics_ids)}"


@attrs.frozen
class PromiseBroken(EngineError):
    """Workers that replace dead ones have less, or compute otherwise, than READY has promised.

    `changed` are the fields, each with what was promised and what there is now.
    """

    code: ClassVar[str] = "promise_broken"
    retryable: ClassVar[bool] = True  # on another engine
    changed: tuple[str, ...]

    def __str__(self) -> str:
        return f"new workers cannot go on where dead ones were: {', '.join(self.changed)}"


@attrs.frozen
class ModelFolderError(EngineError):
    """A model folder that cannot be served: which path, what is wrong, and what to do."""

    code: ClassVar[str] = "model_folder"
    sentence: ClassVar[str] = (
        "{self.path}: {self.reason}. Repair the folder (copy or download it again), or choose"
        " another model"
    )
    path: str = attrs.field(converter=str)
    reason: str


@attrs.frozen
class NotAModelFolder(ModelFolderError):
    """A path without a model: there is nothing to repair. `reason` says what is there, and what to
    give instead."""

    code: ClassVar[str] = "not_a_model_folder"
    sentence: ClassVar[str] = "{self.path}: {self.reason}"


@attrs.frozen
class ModelUnserved(ModelFolderError):
    """A sound folder of a model that there is no code for: which field of its config says so."""

    code: ClassVar[str] = "model_unserved"
    sentence: ClassVar[str] = (
        "{self.path}: {self.reason}. Nothing is wrong with the folder; choose another model"
    )


@attrs.frozen
class BootRefused(EngineError):
    """A process could not start for a cause that no restart cures, such as a broken model file.

    `who` is the process, `reason` its own sentence: that of the `ModelFolderError` or
    `InvalidParameter` it met, of which `parameter` is the setting. Unlike after a death, it is not
    started again.
    """

    code: ClassVar[str] = "boot_refused"
    who: str
    reason: str
    parameter: str = ""

    def __str__(self) -> str:
        return f"{self.parameter} {self.reason}".lstrip()


def refusal_of(error: BaseException) -> tuple[str, str]:
    """Reason and parameter by which a process that met this error refuses to start."""
    if isinstance(error, InvalidParameter | BootRefused):
        return error.reason, error.parameter
    return str(error), ""
