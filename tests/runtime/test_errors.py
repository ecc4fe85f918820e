"""Every error says what to do, and keeps its code."""

import pytest

from triolet.engine.errors import EngineError
from triolet.runtime.errors import (
    ChatTemplateBroken,
    ChatTemplateMissing,
    ChatTemplateRefused,
    NoEngine,
    Overloaded,
    PromptRefused,
    RequestFailed,
    RequestIdInUse,
)

EVERY: list[tuple[EngineError, str, bool, str]] = [
    (RequestIdInUse("r1"), "request_id_in_use", False, "choose another id"),
    (PromptRefused("too long"), "context_length_exceeded", False, "too long"),
    (ChatTemplateMissing("/m"), "chat_template_missing", False, "token ids"),
    (ChatTemplateRefused("roles"), "chat_template_refused", False, "refused the messages: roles"),
    (ChatTemplateBroken("/m", "line 3"), "chat_template_broken", False, "/m: line 3"),
    (Overloaded(1.5), "overloaded", True, "try again in 1.5 s"),
    (NoEngine(), "no_engine", True, "no engine is ready; try again"),
    (RequestFailed("r1", "bad row"), "request_failed", False, "r1 failed: bad row"),
]


@pytest.mark.parametrize(("error", "code", "retryable", "text"), EVERY, ids=lambda v: str(v)[:20])
def test_code_and_text(error: EngineError, code: str, retryable: bool, text: str) -> None:
    assert error.code == code
    assert error.retryable is retryable
    assert text in str(error)
