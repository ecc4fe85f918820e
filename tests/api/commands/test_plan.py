"""What is wrong with a command is said before anything is spawned."""

import math
import pathlib
from typing import Any

import pytest

from triolet.api.commands.plan import RareSettings, is_loopback, make_plan
from triolet.api.frontend_process import settings_of_text
from triolet.api.limits import HttpLimits, ServerLimits
from triolet.engine.errors import InvalidParameter, ModelFolderError
from triolet.runtime.config import StreamSettings, SupervisionSettings

WORDS: dict[str, Any] = {
    "engine": {},
    "engines": 1,
    "frontends": 1,
    "model_name": "",
    "host": "127.0.0.1",
    "port": 8000,
    "api_keys": (),
    "allowed_hosts": (),
    "allowed_origins": (),
    "grace_s": 10.0,
}


def test_without_a_model_it_is_the_bundled_one() -> None:
    plan = make_plan(None, **WORDS)
    assert plan.model_name == "triolet-bundled"
    settings = settings_of_text(plan.frontend_settings)
    assert settings.runtime == plan.settings


def test_restarts_are_counted_as_it_was_said() -> None:
    plan = make_plan(None, **WORDS, restart_limit=7, restart_period_s=9.0)
    assert plan.settings.supervision == SupervisionSettings(restart_limit=7, restart_period_s=9.0)


def test_spares_are_asked_for() -> None:
    assert make_plan(None, **WORDS).settings.spare_engines == 0  # what is started for a load alone
    settings = make_plan(None, **WORDS, spare_engines=2, spare_frontends=1).settings
    assert (settings.spare_engines, settings.spare_frontends) == (2, 1)
    with pytest.raises(InvalidParameter, match="spare_engines must be at least 0"):
        make_plan(None, **WORDS, spare_engines=-1)


def test_how_long_a_response_is_kept_reaches_the_frontends() -> None:
    plan = make_plan(None, **WORDS, resume_keep_s=0)
    assert settings_of_text(plan.frontend_settings).serve.resume_keep_s == 0
    for wrong in (-1, math.inf, math.nan):
        with pytest.raises(InvalidParameter, match="at least 0") as caught:
            make_plan(None, **WORDS, resume_keep_s=wrong)
        assert caught.value.parameter == "resume_keep"


def test_rare_options_reach_the_settings() -> None:
    rare = RareSettings(
        limits=ServerLimits(connections_max=7),
        streams=StreamSettings(window_tokens=9),
        backoff_max=11.0,
    )
    plan = make_plan(None, **WORDS, rare=rare)
    assert plan.settings.streams.window_tokens == 9
    assert plan.settings.supervision.backoff_max_s == 11
    assert settings_of_text(plan.frontend_settings).serve.limits.connections_max == 7


@pytest.mark.parametrize("wrong", [0, -1, math.inf, math.nan])
def test_limits_are_finite_and_above_zero(wrong: float) -> None:
    rare = RareSettings(limits=ServerLimits(http=HttpLimits(head_s=wrong)))
    with pytest.raises(InvalidParameter, match="above 0") as caught:
        make_plan(None, **WORDS, rare=rare)
    assert caught.value.parameter == "limits.http.head_s"


@pytest.mark.parametrize("wrong", [-1, 1001])
def test_how_long_text_waits_is_bounded_and_may_be_nothing(wrong: int) -> None:
    make_plan(None, **WORDS, rare=RareSettings(limits=ServerLimits(merge_ms=0)))
    with pytest.raises(InvalidParameter) as caught:
        make_plan(None, **WORDS, rare=RareSettings(limits=ServerLimits(merge_ms=wrong)))
    assert caught.value.parameter == "limits.merge_ms"


def test_an_open_address_needs_a_key() -> None:
    with pytest.raises(InvalidParameter, match="--api-key"):
        make_plan(None, **{**WORDS, "host": "0.0.0.0"})
    plan = make_plan(None, **{**WORDS, "host": "0.0.0.0", "api_keys": ("k",)})
    assert settings_of_text(plan.frontend_settings).serve.api_keys == ("k",)


@pytest.mark.parametrize(
    "change",
    [
        {"port": 70000},
        {"frontends": 0},
        {"frontends": 257},
        {"engines": 0},
        {"grace_s": -1.0},
        {"engine": {"executor": "x"}},
        {"engine": {"max_model_len": 4096}},
        {"engine": {"max_model_len": 4096, "executor": "null"}},
    ],
    ids=str,
)
def test_values_out_of_range_are_named(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        make_plan(None, **{**WORDS, **change})


@pytest.mark.parametrize(
    ("change", "parameter", "words"),
    [
        ({"api_keys": ("",)}, "api_key", "empty"),
        ({"api_keys": ("k", " ")}, "api_key", "empty"),
        ({"host": "0.0.0.0", "api_keys": ("",)}, "api_key", "empty"),
        ({"allowed_hosts": ("a/b",)}, "allowed_host", "'a/b'"),
        ({"allowed_origins": ("app.example",)}, "allowed_origin", "scheme://name"),
    ],
    ids=str,
)
def test_what_every_frontend_would_stumble_over_is_said_before_one_is_spawned(
    change: dict[str, Any], parameter: str, words: str
) -> None:
    with pytest.raises(InvalidParameter, match=words) as caught:
        make_plan(None, **{**WORDS, **change})
    assert caught.value.parameter == parameter


def test_a_missing_folder_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelFolderError, match="nowhere"):
        make_plan(str(tmp_path / "nowhere"), **WORDS)


def test_loopback_names() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.1.2.3")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))


def test_an_architecture_is_looked_at_by_executors_that_compute(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 9, "architectures": ["GPT2LMHeadModel"]}')
    assert make_plan(str(tmp_path), **{**WORDS, "engine": {"executor": "null"}})
    with pytest.raises(ModelFolderError, match=r"GPT2LMHeadModel.* not served: LlamaForCausalLM, "):
        make_plan(str(tmp_path), **WORDS)


def test_advice_of_the_model_can_be_switched_off() -> None:
    plan = make_plan(None, **WORDS, generation_config="none")
    assert plan.settings.generation_config == "none"
