"""Options carry the settings' own names and defaults, so that neither can drift from the other."""

import attrs

from triolet.api.commands.options import ChatOptions, EngineOptions, ServeOptions
from triolet.engine.config import EngineSettings
from triolet.engine.sampling_params import SamplingParams


def test_engine_options_are_engine_settings_by_name_and_default() -> None:
    options = attrs.asdict(EngineOptions())
    settings = attrs.asdict(EngineSettings(model=""))
    assert options == {name: settings[name] for name in options}
    EngineSettings(model="m", **options)


def test_the_defaults_of_a_conversation_are_in_range() -> None:
    options = ChatOptions()
    SamplingParams(temperature=options.temperature, max_tokens=options.max_tokens)


def test_a_key_is_never_shown() -> None:
    assert "secret" not in repr(ServeOptions(api_key=("secret",)))
