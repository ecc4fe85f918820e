"""Settings arrive at a frontend as they were made, and nothing that was not meant for it."""

import attrs
import cattrs
import msgspec
import pytest

from triolet.api.frontend_process import settings_of_text
from triolet.api.limits import ServerLimits, SocketLimits
from triolet.api.settings import FrontendSettings, ServeSettings, settings_to_text
from triolet.engine.config import EngineSettings
from triolet.runtime.config import RuntimeSettings, RuntimeTimes

SETTINGS = FrontendSettings(
    runtime=RuntimeSettings(
        engine=EngineSettings(model="/models/fox", executor="null", null_step_s=0.25),
        engines=3,
        times=RuntimeTimes(grace_s=7.5),
    ),
    serve=ServeSettings(
        api_keys=("one", "zwölf"),
        allowed_hosts=("api.example",),
        limits=ServerLimits(socket=SocketLimits(age_s=12.5)),
    ),
)


def test_they_arrive_as_they_were_made() -> None:
    assert settings_of_text(settings_to_text(SETTINGS)) == SETTINGS


def test_a_field_that_is_not_known_is_refused() -> None:
    value = msgspec.json.decode(settings_to_text(SETTINGS))
    value["serve"]["colour"] = "red"
    with pytest.raises(cattrs.ClassValidationError):
        settings_of_text(msgspec.json.encode(value).decode())


def test_keys_are_in_no_text_for_people() -> None:
    assert "zwölf" not in repr(SETTINGS)
    assert attrs.fields(ServeSettings).api_keys.repr is False
