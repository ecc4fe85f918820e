"""Every error says what to do, keeps its code, and survives being raised through a chain."""

import pytest

from triolet.engine.errors import EngineError, InvalidRequest, ModelFolderError
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


def test_kinds() -> None:
    assert isinstance(RequestIdInUse("r"), InvalidRequest)
    assert isinstance(ChatTemplateBroken("/m", "x"), ModelFolderError)
    assert not isinstance(Overloaded(), InvalidRequest)


def _refuse() -> None:
    try:
        raise Overloaded(2.0)
    except Overloaded as error:
        raise NoEngine("all are draining") from error


def test_errors_can_be_chained_and_noted() -> None:
    with pytest.raises(NoEngine) as caught:
        _refuse()
    caught.value.add_note("seen")
    assert isinstance(caught.value.__cause__, Overloaded)
