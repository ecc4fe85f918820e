"""Plan of a server, made of its options: every value is checked before a process is spawned.

What can be known to be wrong without a process is refused here, in one sentence: a missing folder,
an unknown architecture, an address that must not be open.
"""

import ipaddress
import os
import pathlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import cattrs

from ... import __version__
from ...engine.config import EngineSettings, check_torch
from ...engine.errors import InvalidParameter
from ...engine.host import has_torch
from ...engine.model.bundled import BUNDLED_MODEL_NAME, bundled_model_folder
from ...engine.model_config.config import load_model_config, load_model_limits
from ...nurseries.logs import FORMATS, LEVELS, open_log
from ...runtime.events import OnEvent
from ...runtime.fleet.root import ServePlan
from ...runtime.hub.fetch import FetchedModel, fetch_model
from ...runtime.hub.model_name import hub_model
from ..http.access import ANY, OriginPolicy, sealed
from ..openai.response_id import FRONTENDS_MAX
from ..settings import (
    TRACES_PATH,
    ListenSettings,
    ServerSettings,
    ServeSettings,
    settings_to_text,
    traces_url,
)

# Device files of NVIDIA's, of AMD's, and of Windows' GPUs.
_DEVICES = pathlib.Path("/dev")
_GPUS = ("nvidia[0-9]*", "kfd", "dxg")
# Characters of a key where others reach the address: 64 bits even in hexadecimal digits.
KEY_CHARACTERS_MIN = 16
# A key file holds at most some thousand keys; a larger one is a mistake.
KEY_FILE_BYTES_MAX = 64 * 2**10
# Converter of everything written, in whatever place, to the one typed tree. Values are not
# converted: their types are checked by the classes, which name the setting.
_CONVERTER = cattrs.Converter(detailed_validation=False, forbid_extra_keys=True)
for _kind in (bool, int, float, str):
    _CONVERTER.register_structure_hook(_kind, lambda value, _: value)


def make_plan(
    model: str | None, options: Mapping[str, Any], fetched: FetchedModel | None = None
) -> ServePlan:
    """The plan of a server of `model`, by a tree shaped as `ServerSettings`.

    A model of the hub has no folder before it is `fetched`; all else is checked.

    Raises `InvalidParameter`, `ModelFolderError`, each naming the fault.
    """
    runtime = options.get("runtime", {})
    _check_logs(runtime.get("logs", {}))
    _check_ladder(runtime.get("times", {}).get("ladder", {}))
    engine = runtime.get("engine", {})
    name = next(iter(options.get("serve", {}).get("served_model_names", ())), "")
    found = hub_model(model, engine.get("revision", ""))
    if file := runtime.get("chat_template", ""):
        runtime = {**runtime, "chat_template": _absolute("chat_template", file)}
    if found is None:
        folder, name = _folder_and_name(model, name)
        engine = {**engine, "model": folder}
    else:
        name = name or found.repository
        place = fetched or FetchedModel(folder="", commit=found.revision)
        engine = {**engine, "model": place.folder, "revision": place.commit}
    runtime = {**runtime, "engine": engine, "model_name": name}
    settings = _CONVERTER.structure({**options, "runtime": runtime}, ServerSettings)
    listen, serve = settings.listen, settings.serve
    _check_edge(serve)
    _check_address(listen, serve)
    if serve.demo:
        serve = _with_demo_key(listen, serve)
        settings = attrs.evolve(settings, serve=serve)
    if traces := _traces_of(serve):
        serve = attrs.evolve(serve, otlp_endpoint=traces)
        settings = attrs.evolve(settings, serve=serve)
    _check_frontends(settings.runtime.frontends)
    if settings.runtime.engine.model:
        _check_engine(settings.runtime.engine)
    if not is_loopback(listen.host):
        serve = attrs.evolve(serve, allowed_hosts=(*serve.allowed_hosts, listen.host))
        settings = attrs.evolve(settings, serve=serve)
    return ServePlan(
        settings=settings.runtime,
        frontend_settings=settings_to_text(attrs.evolve(settings, serve=_sealed(serve))),
        version=__version__,
        host=listen.host,
        port=listen.port,
        demo_key=serve.admin_keys[-1] if serve.demo else "",
    )


def with_demo(options: Mapping[str, Any], *, is_terminal: bool) -> dict[str, Any]:
    """The tree of `make_plan`, with `--demo` for who sits at a terminal of this machine.

    Not for who has an admin key, which opens the page as well, nor against `--no-demo`.
    """
    serve = options["serve"]
    is_natural = is_terminal and is_loopback(options["listen"]["host"]) and not serve["admin_keys"]
    is_demo = not serve["no_demo"] and (serve["demo"] or is_natural)
    return {**options, "serve": {**serve, "demo": is_demo}}


def with_file_keys(
    options: Mapping[str, Any],
    *,
    api_key_file: Iterable[str] = (),
    admin_key_file: Iterable[str] = (),
) -> dict[str, Any]:
    """The tree of `make_plan`, with the keys in these files behind its own.

    Raises `InvalidParameter` for one that cannot be read, or has no key.
    """
    serve = options["serve"]
    of_files = {
        "api_keys": _keys_in("api_key_file", api_key_file),
        "admin_keys": _keys_in("admin_key_file", admin_key_file),
    }
    return {**options, "serve": {**serve, **{k: (*serve[k], *v) for k, v in of_files.items()}}}


def _keys_in(option: str, paths: Iterable[str]) -> tuple[str, ...]:
    """Keys of all these files: lines without the blanks around them, as editors end each."""
    found: list[str] = []
    for path in paths:
        try:
            with pathlib.Path(path).expanduser().open("rb") as file:
                content = file.read(KEY_FILE_BYTES_MAX + 1)
            lines = content.decode("utf-8-sig").splitlines()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise InvalidParameter(option, f"cannot be read: {path}: {reason}") from error
        except UnicodeDecodeError:  # whose text has bytes of a key
            raise InvalidParameter(option, f"is not UTF-8: {path}") from None
        if len(content) > KEY_FILE_BYTES_MAX:
            raise InvalidParameter(option, f"is larger than {KEY_FILE_BYTES_MAX} bytes: {path}")
        keys = [line.strip() for line in lines if line.strip()]
        if not keys:  # nobody could come in, or without other keys everybody
            raise InvalidParameter(option, f"has no key: {path}")
        found += keys
    return tuple(found)


async def fetch_plan(
    plan: ServePlan, model: str | None, options: Mapping[str, Any], on_event: OnEvent
) -> ServePlan:
    """The plan when its model is there: one of the hub has been downloaded, unless it was cached.

    Raises `ModelNotFetched`, and what `make_plan` raises. Cancellation: the download ends.
    """
    engine = plan.settings.engine
    if engine.model:
        return plan
    found = hub_model(model, engine.revision)
    assert found is not None, "a plan without a folder is of a model of the hub"
    async with open_log(plan.settings.logs):
        is_null = engine.executor == "null"
        fetched = await fetch_model(found, on_event, any_architecture=is_null)
    return make_plan(model, options, fetched)


def _folder_and_name(model: str | None, model_name: str) -> tuple[str, str]:
    """Folder of the model, and its name for clients."""
    if not model:
        return str(bundled_model_folder()), model_name or BUNDLED_MODEL_NAME
    folder = pathlib.Path(model).resolve()
    return str(folder), model_name or folder.name


def _absolute(option: str, file: str) -> str:
    """The path of a file that there is. Raises `InvalidParameter`."""
    path = pathlib.Path(file).expanduser().resolve()
    if not path.is_file():
        raise InvalidParameter(option, f"is not a file: {path}")
    return str(path)


def _check_frontends(count: int) -> None:
    if not 1 <= count <= FRONTENDS_MAX:
        raise InvalidParameter("frontends", f"must be from 1 to {FRONTENDS_MAX}, not {count}")


def _check_engine(engine: EngineSettings) -> None:
    """A look at the model's config, as far as the executor will look.

    Raises `ModelFolderError`, and `InvalidParameter` for a length above the model's.
    """
    # The null executor computes nothing, so that any architecture will do.
    load = load_model_limits if engine.executor == "null" else load_model_config
    engine.model_len_of(load(engine.model).max_model_len)
    check_torch(engine, has_torch=has_torch())
    if engine.device != "cpu" and not any(any(_DEVICES.glob(each)) for each in _GPUS):
        raise InvalidParameter("device", "cuda needs a GPU, and this machine has none in /dev")


def short_cache(engine: EngineSettings) -> str:
    """A warning of KV blocks that were chosen and hold less than one request may have; or ""."""
    if not engine.kv_blocks:
        return ""
    length = engine.model_len_of(load_model_limits(engine.model).max_model_len)
    held = engine.kv_blocks * engine.block_tokens
    if held >= length:
        return ""
    return (
        f"--kv-blocks {engine.kv_blocks} is room for {held} tokens: longer requests are refused,"
        f" though the model takes {length}"
    )


def _check_address(listen: ListenSettings, serve: ServeSettings) -> None:
    if is_loopback(listen.host):
        return
    if not serve.api_keys:
        reason = "can be reached from elsewhere: set an API key (--api-key) to allow it"
        raise InvalidParameter("host", f"{listen.host} {reason}")
    for name, keys in (("api_key", serve.api_keys), ("admin_key", serve.admin_keys)):
        if any(len(key) < KEY_CHARACTERS_MIN for key in keys):
            reason = f"is short enough to guess, and {listen.host} can be reached from elsewhere"
            raise InvalidParameter(name, f"{reason}: {KEY_CHARACTERS_MIN} characters at least")


def _with_demo_key(listen: ListenSettings, serve: ServeSettings) -> ServeSettings:
    """Settings with one admin key more, which is good for the life of the server."""
    if not is_loopback(listen.host):
        reason = f"is for this machine alone, and {listen.host} can be reached from elsewhere"
        raise InvalidParameter("demo", reason)
    return attrs.evolve(serve, admin_keys=(*serve.admin_keys, secrets.token_urlsafe()))


def _sealed(serve: ServeSettings) -> ServeSettings:
    """Settings as frontends get them, with digests of the keys."""
    api_keys, admin_keys = (tuple(map(sealed, keys)) for keys in (serve.api_keys, serve.admin_keys))
    return attrs.evolve(serve, api_keys=api_keys, admin_keys=admin_keys)


def _traces_of(serve: ServeSettings) -> str:
    url = traces_url(serve.otlp_endpoint, os.environ)
    if url and not url.startswith(("http://", "https://")):
        reason = f"must be an address as http://host:4318, not {url.removesuffix(TRACES_PATH)!r}"
        raise InvalidParameter("otlp_endpoint", reason)
    return url


def _check_edge(serve: ServeSettings) -> None:
    """Keys and names that every frontend would refuse, later and less clearly."""
    if not all(key.strip() for key in (*serve.api_keys, *serve.admin_keys)):
        raise InvalidParameter("api_key", "must not be empty: remove it, or set one")
    if ANY in serve.allowed_hosts and ANY in serve.allowed_origins and not serve.api_keys:
        reason = "* with --allowed-host * lets every web page read and generate: set an API key"
        raise InvalidParameter("allowed_origin", f"{reason} (--api-key)")
    hosts, origins = (serve.allowed_hosts, ()), ((), serve.allowed_origins)
    for name, policy in (("allowed_host", hosts), ("allowed_origin", origins)):
        try:
            OriginPolicy.of(*policy)
        except ValueError as error:
            raise InvalidParameter(name, f"is wrong: {error}") from error


def _check_logs(logs: Mapping[str, str]) -> None:
    """Raises `InvalidParameter` for a word that is none of them."""
    for name, known in (("format", FORMATS), ("level", LEVELS)):
        if (word := logs.get(name, known[0])) not in known:
            raise InvalidParameter(
                f"log_{name}", f"must be one of {', '.join(known)}, not {word!r}"
            )


def _check_ladder(ladder: Mapping[str, float]) -> None:
    """Raises `InvalidParameter` for a time that is negative."""
    for name, seconds in ladder.items():
        if seconds < 0:
            raise InvalidParameter(f"ladder.{name}", f"must be at least 0, not {seconds:g}")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
