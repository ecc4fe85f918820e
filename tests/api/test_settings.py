"""Settings arrive at a frontend as they were made, and nothing that was not meant for it."""

from typing import Any

import attrs
import msgspec
import pytest

from triolet.api.settings import (
    ServerLimits,
    ServerSettings,
    ServeSettings,
    SocketLimits,
    settings_of_text,
    settings_to_text,
)
from triolet.engine.config import EngineSettings
from triolet.runtime.config import RuntimeSettings, RuntimeTimes

SETTINGS = ServerSettings(
    runtime=RuntimeSettings(
        engine=EngineSettings(model="/models/fox", executor="null", null_step_s=0.25),
        engines=3,
        times=RuntimeTimes(grace_s=7.5),
    ),
    serve=ServeSettings(
        api_keys=("one", "zwölf"),
        resume_keep_s=7,  # an int where a float is wanted
        allowed_hosts=("api.example",),
        limits=ServerLimits(socket=SocketLimits(age_s=12.5)),
    ),
)


def test_they_arrive_as_they_were_made() -> None:
    assert settings_of_text(settings_to_text(SETTINGS)) == SETTINGS


@pytest.mark.parametrize(
    "change", [{"colour": "red"}, {"resume_keep_s": "1"}, {"resume_keep_s": ...}], ids=str
)
def test_other_fields_and_types_are_refused(change: dict[str, Any]) -> None:
    value = msgspec.json.decode(settings_to_text(SETTINGS))
    serve = value["serve"] | change
    value["serve"] = {name: each for name, each in serve.items() if each is not ...}
    with pytest.raises(msgspec.ValidationError):
        settings_of_text(msgspec.json.encode(value).decode())


def test_keys_are_in_no_text_for_people() -> None:
    assert "zwölf" not in repr(SETTINGS)
    assert attrs.fields(ServeSettings).api_keys.repr is False
