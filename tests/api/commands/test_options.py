"""Options carry the settings' own names and defaults, so that neither can drift from the other."""

import attrs

from triolet.api.commands.options import ChatOptions, EngineOptions, ServeOptions
from triolet.api.commands.plan import RareSettings
from triolet.api.settings import ServeSettings
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


def test_every_setting_of_the_edge_has_its_option() -> None:
    options, rare, settings = ServeOptions(), RareSettings(), ServeSettings()
    by_field = {
        "api_keys": options.api_key,
        "admin_keys": options.admin_key,
        "vllm_metrics": options.vllm_metrics,
        "allowed_hosts": options.allowed_host,
        "allowed_origins": options.allowed_origin,
        "limits": rare.limits,
        "grace_s": options.grace,
        "resume_keep_s": options.resume_keep,
    }
    assert by_field == attrs.asdict(settings, recurse=False)


def test_a_key_is_never_shown() -> None:
    assert "secret" not in repr(ServeOptions(api_key=("secret",)))
