"""Plan of a server, made of its options: every value is checked before a process is spawned.

What can be known to be wrong without a process is refused here, in one sentence: a missing folder,
an unknown architecture, an address that must not be open.
"""

import ipaddress
import math
import pathlib
from typing import TYPE_CHECKING, Any

import attrs

from ... import __version__
from ...engine.config import EngineSettings
from ...engine.errors import InvalidParameter
from ...engine.model.bundled import BUNDLED_MODEL_NAME, bundled_model_folder
from ...engine.model_config.config import load_model_config, load_model_limits
from ...nurseries.logs import FORMATS, LEVELS, LogSettings
from ...runtime.config import RuntimeSettings, RuntimeTimes, SupervisionSettings
from ...runtime.processes.root import ServePlan
from ..http.access import OriginPolicy
from ..openai.response_id import FRONTENDS_MAX
from ..settings import MERGE_MS_MAX, FrontendSettings, ServeSettings, settings_to_text

if TYPE_CHECKING:  # the parser that their annotations are for is not loaded with a server
    from .options import EngineOptions, ServeOptions


def make_plan(model: str | None, options: "ServeOptions", engine: "EngineOptions") -> ServePlan:
    """The plan. Raises `InvalidParameter`, `ModelFolderError`, each naming the fault."""
    _check_numbers(options)
    _check_address(options.host, options.port, is_open=not options.api_key)
    _check_edge(options)
    logs = _log_settings(options.log_format, options.log_level)
    folder, name = _folder_and_name(model, options.model_name)
    runtime = RuntimeSettings(
        engine=_checked_engine(folder, engine),
        engines=options.engines,
        frontends=options.frontends,
        spare_engines=options.spare_engines,
        spare_frontends=options.spare_frontends,
        model_name=name,
        generation_config=options.generation_config,
        supervision=SupervisionSettings(
            restart_limit=options.restart_limit,
            restart_period_s=options.restart_period,
            backoff_min_s=options.backoff_min,
            backoff_max_s=options.backoff_max,
        ),
        admission=options.admission,
        input=options.input,
        streams=options.streams,
        times=RuntimeTimes(grace_s=options.grace, ladder=options.ladder),
        logs=logs,
    )
    hosts = options.allowed_host
    serve = ServeSettings(
        api_keys=options.api_key,
        admin_keys=options.admin_key,
        vllm_metrics=options.vllm_metrics,
        allowed_hosts=hosts if is_loopback(options.host) else (*hosts, options.host),
        allowed_origins=options.allowed_origin,
        grace_s=options.grace,
        resume_keep_s=options.resume_keep,
        limits=options.limits,
    )
    return ServePlan(
        settings=runtime,
        frontend_settings=settings_to_text(FrontendSettings(runtime=runtime, serve=serve)),
        model_name=name,
        version=__version__,
        host=options.host,
        port=options.port,
        frontends=options.frontends,
        grace_s=options.grace,
    )


def _folder_and_name(model: str | None, model_name: str) -> tuple[str, str]:
    """Where the model is, and what clients call it."""
    if not model:
        return str(bundled_model_folder()), model_name or BUNDLED_MODEL_NAME
    folder = pathlib.Path(model).resolve()
    return str(folder), model_name or folder.name


def _check_numbers(options: "ServeOptions") -> None:
    check_numbers("limits", options.limits)
    keep_s, frontends = options.resume_keep, options.frontends
    if not 0 <= keep_s < math.inf:
        raise InvalidParameter("resume_keep", f"must be finite and at least 0, not {keep_s:g}")
    if options.limits.merge_ms > MERGE_MS_MAX:
        raise InvalidParameter("limits.merge_ms", f"must be at most {MERGE_MS_MAX}")
    if not 1 <= frontends <= FRONTENDS_MAX:
        raise InvalidParameter("frontends", f"must be from 1 to {FRONTENDS_MAX}, not {frontends}")


def _checked_engine(folder: str, options: "EngineOptions") -> EngineSettings:
    """The settings, after a look at the model's config, as far as the executor will look.

    Raises `ModelFolderError`, and `InvalidParameter` for a length above the model's.
    """
    engine = EngineSettings(model=folder, **attrs.asdict(options))
    # The null executor computes nothing, so that any architecture will do.
    load = load_model_limits if engine.executor == "null" else load_model_config
    engine.model_len_of(load(folder).max_model_len)
    return engine


def _check_address(host: str, port: int, *, is_open: bool) -> None:
    if not is_loopback(host) and is_open:
        raise InvalidParameter(
            "host", f"{host} can be reached from elsewhere: set an API key (--api-key) to allow it"
        )
    if not 0 <= port <= 65535:
        raise InvalidParameter("port", f"must be from 0 to 65535, not {port}")


def _check_edge(options: "ServeOptions") -> None:
    """Keys and names that every frontend would refuse, later and less clearly."""
    if not all(key.strip() for key in (*options.api_key, *options.admin_key)):
        raise InvalidParameter("api_key", "must not be empty: remove it, or set one")
    hosts, origins = (options.allowed_host, ()), ((), options.allowed_origin)
    for name, policy in (("allowed_host", hosts), ("allowed_origin", origins)):
        try:
            OriginPolicy.of(*policy)
        except ValueError as error:
            raise InvalidParameter(name, f"is wrong: {error}") from error


def _log_settings(words: str, level: str) -> LogSettings:
    """Raises `InvalidParameter` for a word that is none of them."""
    for name, word, known in (("log_format", words, FORMATS), ("log_level", level, LEVELS)):
        if word not in known:
            raise InvalidParameter(name, f"must be one of {', '.join(known)}, not {word!r}")
    return LogSettings(format=words, level=level)


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
