"""What is wrong with a command is said before anything is spawned."""

import math
import pathlib
from typing import Any

import attrs
import pytest

from triolet.api.commands.options import ServeOptions
from triolet.api.commands.plan import is_loopback, make_plan
from triolet.api.settings import settings_of_text
from triolet.engine.errors import InvalidParameter, ModelFolderError
from triolet.runtime.config import JournalSettings, SupervisionSettings
from triolet.runtime.processes.root import ServePlan


def plan_of(
    model: str | None = None,
    *,
    listen: dict[str, Any] | None = None,
    serve: dict[str, Any] | None = None,
    **runtime: Any,
) -> ServePlan:
    """Of what `serve` is given: its options' tree with these changes."""
    tree = attrs.asdict(ServeOptions())
    tree["runtime"]["engine"] |= runtime.pop("engine", {})
    return make_plan(
        model,
        {
            "listen": tree["listen"] | (listen or {}),
            "serve": tree["serve"] | (serve or {}),
            "runtime": tree["runtime"] | runtime,
        },
    )


def test_without_a_model_it_is_the_bundled_one() -> None:
    plan = plan_of()
    assert plan.settings.model_name == "triolet-bundled"
    settings = settings_of_text(plan.frontend_settings)
    assert settings.runtime == plan.settings


def test_options_reach_the_settings() -> None:
    plan = plan_of(
        serve={"resume_keep_s": 0},
        supervision={"restart_limit": 7, "restart_period_s": 9.0},
        spare_engines=2,
        generation_config="none",
        logs={"format": "json"},
        journal={"enabled": False, "adopted_keep_s": 0},
    )
    settings = plan.settings
    assert settings.supervision == SupervisionSettings(restart_limit=7, restart_period_s=9.0)
    assert (settings.spare_engines, settings.generation_config) == (2, "none")
    assert settings.logs.format == "json"
    assert settings.journal == JournalSettings(enabled=False, adopted_keep_s=0)
    assert settings_of_text(plan.frontend_settings).serve.resume_keep_s == 0


def test_rare_options_reach_the_settings() -> None:
    plan = plan_of(
        serve={"limits": {"connections_max": 7}},
        streams={"window_tokens": 9},
        supervision={"backoff_max_s": 11.0},
    )
    assert plan.settings.streams.window_tokens == 9
    assert plan.settings.supervision.backoff_max_s == 11
    assert settings_of_text(plan.frontend_settings).serve.limits.connections_max == 7


@pytest.mark.parametrize("wrong", [0, -1, math.inf, math.nan])
def test_limits_are_finite_and_above_zero(wrong: float) -> None:
    with pytest.raises(InvalidParameter, match="above 0") as caught:
        plan_of(serve={"limits": {"http": {"head_s": wrong}}})
    assert caught.value.parameter == "limits.http.head_s"


@pytest.mark.parametrize("wrong", [-1, 1001])
def test_how_long_text_waits_is_bounded_and_may_be_nothing(wrong: int) -> None:
    plan_of(serve={"limits": {"merge_ms": 0}})
    with pytest.raises(InvalidParameter) as caught:
        plan_of(serve={"limits": {"merge_ms": wrong}})
    assert caught.value.parameter == "limits.merge_ms"


def test_an_open_address_needs_a_key() -> None:
    with pytest.raises(InvalidParameter, match="--api-key"):
        plan_of(listen={"host": "0.0.0.0"})
    plan = plan_of(listen={"host": "0.0.0.0"}, serve={"api_keys": ("k",)})
    assert settings_of_text(plan.frontend_settings).serve.api_keys == ("k",)


@pytest.mark.parametrize(
    "change",
    [
        {"listen": {"port": 70000}},
        {"frontends": 0},
        {"frontends": 257},
        {"engines": 0},
        {"spare_engines": -1},
        {"serve": {"resume_keep_s": -1}},
        {"serve": {"resume_keep_s": math.inf}},
        {"serve": {"resume_keep_s": math.nan}},
        {"logs": {"format": "xml"}},
        {"times": {"grace_s": -1.0}},
        {"engine": {"executor": "x"}},
        {"engine": {"max_model_len": 4096}},
        {"engine": {"max_model_len": 4096, "executor": "null"}},
    ],
    ids=str,
)
def test_values_out_of_range_are_named(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        plan_of(**change)


@pytest.mark.parametrize(
    ("change", "parameter", "words"),
    [
        ({"journal": {"bytes_max": 0}}, "journal_bytes_max", "at least 1"),
        ({"journal": {"enabled": "DIR"}}, "journal", "True or False"),
        ({"serve": {"api_keys": ("",)}}, "api_key", "empty"),
        ({"serve": {"api_keys": ("k", " ")}}, "api_key", "empty"),
        ({"listen": {"host": "0.0.0.0"}, "serve": {"api_keys": ("",)}}, "api_key", "empty"),
        ({"serve": {"allowed_hosts": ("a/b",)}}, "allowed_host", "'a/b'"),
        ({"serve": {"allowed_origins": ("app.example",)}}, "allowed_origin", "scheme://name"),
    ],
    ids=str,
)
def test_what_every_frontend_would_stumble_over_is_said_before_one_is_spawned(
    change: dict[str, Any], parameter: str, words: str
) -> None:
    with pytest.raises(InvalidParameter, match=words) as caught:
        plan_of(**change)
    assert caught.value.parameter == parameter


def test_a_missing_folder_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ModelFolderError, match="nowhere"):
        plan_of(str(tmp_path / "nowhere"))


def test_loopback_names() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.1.2.3")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))


def test_an_architecture_is_looked_at_by_executors_that_compute(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 9, "architectures": ["GPT2LMHeadModel"]}')
    assert plan_of(str(tmp_path), engine={"executor": "null"})
    with pytest.raises(ModelFolderError, match=r"GPT2LMHeadModel.* not served: LlamaForCausalLM, "):
        plan_of(str(tmp_path))
