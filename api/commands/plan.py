"""Plan of a server, made of its options: every value is checked before a process is spawned.

What can be known to be wrong without a process is refused here, in one sentence: a missing folder,
an unknown architecture, an address that must not be open.
"""

import ipaddress
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import attrs
import cattrs

from ... import __version__
from ...engine.config import EngineSettings
from ...engine.errors import InvalidParameter
from ...engine.model.bundled import BUNDLED_MODEL_NAME, bundled_model_folder
from ...engine.model_config.config import load_model_config, load_model_limits
from ...nurseries.logs import FORMATS, LEVELS
from ...runtime.processes.root import ServePlan
from ..http.access import OriginPolicy
from ..openai.response_id import FRONTENDS_MAX
from ..settings import MERGE_MS_MAX, ListenSettings, ServerSettings, ServeSettings, settings_to_text

# Of all that was written, in whatever place, the one typed tree. Values are not converted: their
# types are checked by the classes, which name the setting.
_CONVERTER = cattrs.Converter(detailed_validation=False, forbid_extra_keys=True)
for _kind in (bool, int, float, str):
    _CONVERTER.register_structure_hook(_kind, lambda value, _: value)


def make_plan(model: str | None, options: Mapping[str, Any]) -> ServePlan:
    """The plan of a server of `model`, by a tree shaped as `ServerSettings`.

    Raises `InvalidParameter`, `ModelFolderError`, each naming the fault.
    """
    runtime = options.get("runtime", {})
    _check_logs(runtime.get("logs", {}))
    folder, name = _folder_and_name(model, runtime.get("model_name", ""))
    engine = {**runtime.get("engine", {}), "model": folder}
    runtime = {**runtime, "engine": engine, "model_name": name}
    settings = _CONVERTER.structure({**options, "runtime": runtime}, ServerSettings)
    listen, serve = settings.listen, settings.serve
    _check_address(listen, is_open=not serve.api_keys)
    _check_edge(serve)
    _check_frontends(settings.runtime.frontends)
    _check_engine(settings.runtime.engine)
    if not is_loopback(listen.host):
        serve = attrs.evolve(serve, allowed_hosts=(*serve.allowed_hosts, listen.host))
        settings = attrs.evolve(settings, serve=serve)
    return ServePlan(
        settings=settings.runtime,
        frontend_settings=settings_to_text(settings),
        version=__version__,
        host=listen.host,
        port=listen.port,
    )


def _folder_and_name(model: str | None, model_name: str) -> tuple[str, str]:
    """Where the model is, and what clients call it."""
    if not model:
        return str(bundled_model_folder()), model_name or BUNDLED_MODEL_NAME
    folder = pathlib.Path(model).resolve()
    return str(folder), model_name or folder.name


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


def _check_address(listen: ListenSettings, *, is_open: bool) -> None:
    if not is_loopback(listen.host) and is_open:
        reason = "can be reached from elsewhere: set an API key (--api-key) to allow it"
        raise InvalidParameter("host", f"{listen.host} {reason}")


def _check_edge(serve: ServeSettings) -> None:
    """Limits, keys and names that every frontend would refuse, later and less clearly."""
    check_numbers("limits", serve.limits)
    if serve.limits.merge_ms > MERGE_MS_MAX:
        raise InvalidParameter("limits.merge_ms", f"must be at most {MERGE_MS_MAX}")
    if not all(key.strip() for key in (*serve.api_keys, *serve.admin_keys)):
        raise InvalidParameter("api_key", "must not be empty: remove it, or set one")
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


def check_numbers(name: str, limits: Any) -> None:
    """Every limit of the tree is finite and above zero, or zero where that is the default.

    Raises `InvalidParameter` with the dotted name.
    """
    declared = attrs.fields_dict(type(limits))
    for field, value in attrs.asdict(limits, recurse=False).items():
        dotted = f"{name}.{field}"
        if value == 0 and declared[field].default == 0:
            continue
        if attrs.has(type(value)):
            check_numbers(dotted, value)
        elif isinstance(value, int | float) and not 0 < value < math.inf:
            raise InvalidParameter(dotted, f"must be finite and above 0, not {value:g}")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
