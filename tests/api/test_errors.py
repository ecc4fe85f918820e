"""Every typed error has one answer; what is unknown tells nothing."""

import string
import sys

import attrs
import pytest

from triolet.api.errors import ApiError, bad_field, draining, to_api_error, unsupported
from triolet.engine.errors import (
    EngineDied,
    EngineError,
    InvalidParameter,
    InvalidRequest,
    ModelFolderError,
    PromptTooLong,
    StepFailed,
)
from triolet.runtime.errors import (
    ChatTemplateRefused,
    NoEngine,
    Overloaded,
    PromptRefused,
    RequestFailed,
    ServerDraining,
)


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (PromptTooLong(9, 8), 400, "context_length_exceeded", None),
        (PromptRefused("too long"), 400, "context_length_exceeded", None),
        (InvalidParameter("top_k", "is odd"), 400, "invalid_parameter", None),
        (InvalidRequest(), 400, "invalid_request", None),
        (ChatTemplateRefused("roles"), 400, "chat_template_refused", None),
        (Overloaded(0.2), 429, "overloaded", "1"),
        (NoEngine("all engines restart", 1.5), 503, "no_engine", "2"),
        (ServerDraining(), 503, "server_draining", "1"),
        (EngineDied("engine 0", "was killed"), 503, "engine_died", "2"),
        (StepFailed(3, 0, "Traceback: 0x7f00\nsecret"), 503, "step_failed", "2"),
        (RequestFailed("r", "no room"), 500, "request_failed", None),
        (ModelFolderError("/secret", "gone"), 500, "internal_error", None),
        (ZeroDivisionError("0x7f00"), 500, "internal_error", None),
        (ExceptionGroup("g", [OSError("0x7f00")]), 500, "internal_error", None),
        (draining(), 503, "server_draining", "2"),
    ],
)
def test_mapping(error: Exception, status: int, code: str, retry: str | None) -> None:
    mapped = to_api_error(error)
    assert (mapped.status, mapped.code) == (status, code)
    assert dict(mapped.headers()).get("retry-after") == retry
    assert dict(mapped.headers()).get("x-should-retry") == (
        "false" if code == "request_failed" else None
    )
    text = str(mapped.body())
    assert "0x7f" not in text
    assert "secret" not in text


def kinds_of(base: type[EngineError]) -> list[type[EngineError]]:
    """But for what `attrs` has replaced by a class with slots, which lives on for a while."""
    found = [each for each in base.__subclasses__() if each is named(each)]
    return [base, *(kind for each in found for kind in kinds_of(each))]


def named(kind: type[EngineError]) -> object:
    return getattr(sys.modules[kind.__module__], kind.__name__, None)


@pytest.mark.parametrize("kind", kinds_of(EngineError), ids=lambda kind: kind.__name__)
def test_a_sentence_names_fields_that_are_there(kind: type[EngineError]) -> None:
    fields = attrs.fields_dict(kind) if attrs.has(kind) else {}
    places = [name for _, name, _, _ in string.Formatter().parse(kind.sentence) if name]
    assert all(name.removeprefix("self.") in fields for name in places)
    assert all(name.startswith("self.") for name in places)


def test_fields_are_named_in_the_protocols_spelling() -> None:
    error = to_api_error(
        InvalidParameter("max_tokens", "is 0"), {"max_tokens": "max_output_tokens"}
    )
    assert error.param == "max_output_tokens"
    assert str(error) == "max_output_tokens: is 0"


def test_the_body_is_openais() -> None:
    assert ApiError(404, "no", "c", param="p").body() == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "p", "code": "c"}
    }


def test_helpers_name_the_path() -> None:
    assert bad_field("a[1].b", "is odd").param == "a[1].b"
    assert unsupported("tools", "not served").code == "unsupported_parameter"


def test_a_prompt_that_is_too_long_is_refused_in_openais_words() -> None:
    error = to_api_error(PromptTooLong(3003, 1024), {"prompt": "messages"})
    assert error.param == "messages"
    assert "maximum context length is 1024 tokens. However, your" in str(error)
    assert "resulted in 3003 tokens" in str(error)
    assert to_api_error(PromptTooLong(3003, 1024)).param == "prompt"
