"""What is wrong with a command is said before anything is spawned."""

import math
import pathlib
import sys
from typing import Any

import attrs
import pytest
import trio

from triolet.api.commands.options import ServeOptions
from triolet.api.commands.plan import (
    fetch_plan,
    is_loopback,
    make_plan,
    short_cache,
    with_demo,
    with_file_keys,
)
from triolet.api.http.access import sealed
from triolet.api.settings import settings_of_text
from triolet.engine.errors import InvalidParameter, ModelFolderError
from triolet.runtime.config import JournalSettings, SupervisionSettings
from triolet.runtime.events import ignore_event
from triolet.runtime.fleet.root import ServePlan

from ...runtime.hub.local_hub import open_hub

DEADLINE_S = 60.0
KEY = "0123456789abcdef"


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


def test_the_first_of_several_names_is_the_models() -> None:
    plan = plan_of(serve={"served_model_names": ("a", "b")})
    assert plan.settings.model_name == "a"
    assert settings_of_text(plan.frontend_settings).serve.served_model_names == ("a", "b")


def test_without_a_model_it_is_the_bundled_one() -> None:
    plan = plan_of()
    assert plan.settings.model_name == "triolet-bundled"
    settings = settings_of_text(plan.frontend_settings)
    assert settings.runtime == plan.settings


def test_options_reach_the_settings() -> None:
    plan = plan_of(
        serve={"resume_keep_s": 0, "limits": {"connections_max": 7}},
        supervision={"restart_limit": 7, "restart_period_s": 9.0, "backoff_max_s": 11.0},
        streams={"window_tokens": 9},
        spare_engines=2,
        generation_config="none",
        logs={"format": "json"},
        journal={"disabled": True, "adopted_keep_s": 0},
        takeover=True,
    )
    settings = plan.settings
    assert settings.supervision == SupervisionSettings(
        restart_limit=7, restart_period_s=9.0, backoff_max_s=11.0
    )
    assert settings.streams.window_tokens == 9
    assert (settings.spare_engines, settings.generation_config) == (2, "none")
    assert settings.logs.format == "json"
    assert settings.journal == JournalSettings(disabled=True, adopted_keep_s=0)
    assert settings.takeover
    assert not settings.takes_over  # there is nothing that it could go on with
    serve = settings_of_text(plan.frontend_settings).serve
    assert (serve.resume_keep_s, serve.limits.connections_max) == (0, 7)


def test_a_demo_has_an_admin_key_of_its_own() -> None:
    plan = plan_of(serve={"demo": True, "admin_keys": ("mine",)})
    serve = settings_of_text(plan.frontend_settings).serve
    assert serve.admin_keys == (sealed("mine"), sealed(plan.demo_key))
    assert len(plan.demo_key) > 20
    assert plan_of().demo_key == ""


@pytest.mark.parametrize(
    ("serve", "host", "is_terminal", "is_demo"),
    [
        ({}, "127.0.0.1", True, True),
        ({}, "127.0.0.1", False, False),
        ({}, "0.0.0.0", True, False),
        ({"admin_keys": ("mine",)}, "127.0.0.1", True, False),
        ({"no_demo": True}, "127.0.0.1", True, False),
        ({"demo": True}, "127.0.0.1", False, True),
        ({"demo": True}, "0.0.0.0", True, True),  # which is refused
    ],
)
def test_who_sits_at_a_terminal_of_this_machine_gets_the_address(
    serve: dict[str, Any], host: str, is_terminal: bool, is_demo: bool
) -> None:
    options = attrs.asdict(ServeOptions())
    options["serve"] |= serve
    options["listen"]["host"] = host
    assert with_demo(options, is_terminal=is_terminal)["serve"]["demo"] is is_demo


def test_a_demo_is_for_this_machine_alone() -> None:
    with pytest.raises(
        InvalidParameter, match=r"demo is for this machine alone, and 0\.0\.0\.0 can"
    ):
        plan_of(listen={"host": "0.0.0.0"}, serve={"demo": True, "api_keys": (KEY,)})


@pytest.mark.parametrize("wrong", [0, -1, math.inf, math.nan])
def test_limits_are_finite_and_above_zero(wrong: float) -> None:
    with pytest.raises(InvalidParameter, match=r"must be at least 0\.001") as caught:
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
    plan = plan_of(listen={"host": "0.0.0.0"}, serve={"api_keys": (KEY,)})
    assert settings_of_text(plan.frontend_settings).serve.api_keys == (sealed(KEY),)
    assert KEY not in plan.frontend_settings


@pytest.mark.parametrize(("name", "keys"), [("api_key", (KEY, "k")), ("admin_key", (KEY,))])
def test_an_open_address_needs_keys_that_are_not_guessed(name: str, keys: tuple[str, ...]) -> None:
    serve = {"api_keys": keys, "admin_keys": (KEY[1:],)}
    with pytest.raises(InvalidParameter, match="short enough to guess") as caught:
        plan_of(listen={"host": "0.0.0.0"}, serve=serve)
    assert caught.value.parameter == name
    plan_of(serve=serve)


def test_keys_come_from_files(tmp_path: pathlib.Path) -> None:
    users, admins, more = (tmp_path / name for name in ("users", "admins", "more"))
    users.write_bytes(b"\xef\xbb\xbfone\r\n\n  two \n")
    admins.write_text("root")
    more.write_text("three\n")
    tree = attrs.asdict(ServeOptions())
    tree["serve"]["api_keys"] = ("own",)
    files = [str(users), str(more)]
    tree = with_file_keys(tree, api_key_file=files, admin_key_file=[str(admins)])
    serve = settings_of_text(make_plan(None, tree).frontend_settings).serve
    assert serve.api_keys == tuple(map(sealed, ("own", "one", "two", "three")))
    assert serve.admin_keys == (sealed("root"),)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        (b"", "has no key"),
        (b" \n\r\n", "has no key"),
        (b"secret\xff", "is not UTF-8"),
        (b"secret\n" * 10_000, "is larger than"),
    ],
)
def test_a_file_without_keys_starts_no_server(
    tmp_path: pathlib.Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidParameter, match=said) as caught:
        with_file_keys(attrs.asdict(ServeOptions()), admin_key_file=[str(path)])
    assert caught.value.parameter == "admin_key_file"
    assert str(path) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_all_web_pages_are_let_in_with_a_key_alone() -> None:
    serve = {"allowed_hosts": ("*",), "allowed_origins": ("*",)}
    with pytest.raises(InvalidParameter, match="every web page"):
        plan_of(serve=serve)
    plan_of(serve={**serve, "api_keys": ("k",)})


@pytest.mark.parametrize(
    "change",
    [
        {"listen": {"port": 70000}},
        {"frontends": 0},
        {"frontends": 257},
        {"spare_engines": -1},
        {"serve": {"resume_keep_s": -1}},
        {"logs": {"format": "xml"}},
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
        ({"journal": {"disabled": "DIR"}}, "no_journal", "True or False"),
        ({"journal": {"disabled": True, "folder": "d"}}, "no_journal", "must not be set"),
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


async def test_a_model_of_the_hub_is_pinned_and_served_under_its_name(
    null_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("config.json", "tokenizer.json", "tokenizer_config.json")
    files = {name: (null_folder / name).read_bytes() for name in names}
    files["model.safetensors"] = b""
    options = {"runtime": {"engine": {"executor": "null"}, "frontends": 1}}
    with pytest.raises(InvalidParameter, match="frontends"):  # before anything is downloaded
        make_plan("org/tiny", {"runtime": {"frontends": 0}})
    async with open_hub({"org/tiny": {"main": files}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        with trio.fail_after(DEADLINE_S):
            plan = make_plan("org/tiny", options)
            plan = await fetch_plan(plan, "org/tiny", options, ignore_event)
    engine = plan.settings.engine
    assert engine.revision == hub.commit("org/tiny", "main")
    assert engine.model.endswith(f"snapshots/{engine.revision}")
    assert plan.settings.model_name == "org/tiny"
    assert settings_of_text(plan.frontend_settings).runtime == plan.settings


def test_cuda_without_a_gpu_is_refused_before_a_spawn() -> None:
    if any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("this machine has a GPU")
    with pytest.raises(InvalidParameter, match="device cuda needs a GPU"):
        plan_of(engine={"device": "cuda", "executor": "torch"})


def test_torch_that_is_not_installed_is_refused_before_a_spawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidParameter, match=r"executor torch needs PyTorch: pip install"):
        plan_of(engine={"executor": "torch"})
    plan_of()


def test_a_chat_template_is_named_by_its_path_and_must_be_there(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "template.jinja"
    with pytest.raises(InvalidParameter, match="chat_template is not a file"):
        plan_of(chat_template=str(file))
    file.write_text("{{ messages[0].content }}")
    monkeypatch.chdir(tmp_path)
    assert plan_of(chat_template="template.jinja").settings.chat_template == str(file)


def test_a_cache_that_is_shorter_than_the_model_is_warned_of() -> None:
    assert not short_cache(plan_of().settings.engine)
    warning = short_cache(plan_of(engine={"kv_blocks": 1}).settings.engine)
    assert warning.startswith("--kv-blocks 1 is room for 16 tokens: longer requests are refused")


def test_loopback_names() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.1.2.3")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))


def test_an_architecture_is_looked_at_by_executors_that_compute(tmp_path: pathlib.Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 9, "architectures": ["GPT2LMHeadModel"]}')
    assert plan_of(str(tmp_path), engine={"executor": "null"})
    with pytest.raises(ModelFolderError, match=r"GPT2LMHeadModel.* not served: LlamaForCausalLM, "):
        plan_of(str(tmp_path))
