"""From the words of the command line to the plan of a server, every value checked before a spawn.

What can be known to be wrong without a process is said here, in one sentence: a missing folder, an
unknown architecture, an address that must not be open. Must not know argument parsing.
"""

import ipaddress
import math
import pathlib
from typing import Any

import attrs

from ... import __version__
from ...engine.config import EngineSettings
from ...engine.errors import InvalidParameter
from ...engine.model.bundled import BUNDLED_MODEL_NAME, bundled_model_folder
from ...engine.model_config.config import load_model_config, load_model_limits
from ...nurseries.logs.lines import FORMATS, LEVELS, LogSettings
from ...nurseries.processes.shutdown_ladder import LadderTimes
from ...runtime.config import (
    GENERATION_CONFIG_AUTO,
    AdmissionLimits,
    InputLimits,
    RuntimeSettings,
    RuntimeTimes,
    StreamSettings,
    SupervisionSettings,
)
from ...runtime.processes.root import ServePlan
from ..http.origin import OriginPolicy
from ..limits import MERGE_MS_MAX, ServerLimits
from ..openai.response_id import FRONTENDS_MAX
from ..settings import RESUME_KEEP_S, FrontendSettings, ServeSettings, settings_to_text

RESTARTS, LOGS = SupervisionSettings(), LogSettings()


@attrs.frozen
class KeyNeeded(InvalidParameter):
    """An address that others can reach needs a key."""


@attrs.frozen(kw_only=True)
class RareSettings:
    """What hardly anyone changes; options by dotted names, as `--limits.http.head-s`.

    In a file: `head_s = 2` below `[serve.limits.http]`. In the environment:
    `TRIOLET_LIMITS_HTTP_HEAD_S`.
    """

    limits: ServerLimits = attrs.field(factory=ServerLimits)
    admission: AdmissionLimits = attrs.field(factory=AdmissionLimits)
    input: InputLimits = attrs.field(factory=InputLimits)
    streams: StreamSettings = attrs.field(factory=StreamSettings)
    ladder: LadderTimes = attrs.field(factory=LadderTimes)
    # Of restarts: the first delay, the longest.
    backoff_min: float = RESTARTS.backoff_min_s
    backoff_max: float = RESTARTS.backoff_max_s


RARE = RareSettings()


def make_plan(
    model: str | None,
    *,
    engine: dict[str, Any],
    engines: int,
    frontends: int,
    model_name: str,
    host: str,
    port: int,
    api_keys: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    allowed_origins: tuple[str, ...],
    grace_s: float,
    generation_config: str = GENERATION_CONFIG_AUTO,
    spare_engines: int = 0,
    spare_frontends: int = 0,
    admin_keys: tuple[str, ...] = (),
    vllm_metrics: bool = False,
    resume_keep_s: float = RESUME_KEEP_S,
    restart_limit: int = RESTARTS.restart_limit,
    restart_period_s: float = RESTARTS.restart_period_s,
    logs: LogSettings = LOGS,
    rare: RareSettings = RARE,
) -> ServePlan:
    """The plan. Raises `InvalidParameter`, `ModelFolderError`, each naming the fault."""
    _check_numbers(frontends, resume_keep_s, rare)
    _check_address(host, port, is_open=not api_keys)
    _check_edge((*api_keys, *admin_keys), allowed_hosts, allowed_origins)
    folder, name = _folder_and_name(model, model_name)
    settings = RuntimeSettings(
        engine=_checked_engine(folder, engine),
        engines=engines,
        frontends=frontends,
        spare_engines=spare_engines,
        spare_frontends=spare_frontends,
        model_name=name,
        generation_config=generation_config,
        supervision=_supervision(restart_limit, restart_period_s, rare),
        admission=rare.admission,
        input=rare.input,
        streams=rare.streams,
        times=RuntimeTimes(grace_s=grace_s, ladder=rare.ladder),
        logs=logs,
    )
    serve = ServeSettings(
        api_keys=api_keys,
        admin_keys=admin_keys,
        vllm_metrics=vllm_metrics,
        allowed_hosts=allowed_hosts if is_loopback(host) else (*allowed_hosts, host),
        allowed_origins=allowed_origins,
        grace_s=grace_s,
        resume_keep_s=resume_keep_s,
        limits=rare.limits,
    )
    return _plan_of(settings, serve, host, port)


def _plan_of(settings: RuntimeSettings, serve: ServeSettings, host: str, port: int) -> ServePlan:
    return ServePlan(
        settings=settings,
        frontend_settings=settings_to_text(FrontendSettings(runtime=settings, serve=serve)),
        model_name=settings.model_name,
        version=__version__,
        host=host,
        port=port,
        frontends=settings.frontends,
        grace_s=serve.grace_s,
    )


def _folder_and_name(model: str | None, model_name: str) -> tuple[str, str]:
    """Where the model is, and what clients call it."""
    if not model:
        return str(bundled_model_folder()), model_name or BUNDLED_MODEL_NAME
    folder = pathlib.Path(model).resolve()
    return str(folder), model_name or folder.name


def _check_numbers(frontends: int, keep_s: float, rare: RareSettings) -> None:
    check_numbers("limits", rare.limits)
    if not 0 <= keep_s < math.inf:
        raise InvalidParameter("resume_keep", f"must be finite and at least 0, not {keep_s:g}")
    if rare.limits.merge_ms > MERGE_MS_MAX:
        raise InvalidParameter("limits.merge_ms", f"must be at most {MERGE_MS_MAX}")
    if not 1 <= frontends <= FRONTENDS_MAX:
        raise InvalidParameter("frontends", f"must be from 1 to {FRONTENDS_MAX}, not {frontends}")


def _supervision(
    restart_limit: int, restart_period_s: float, rare: RareSettings
) -> SupervisionSettings:
    return SupervisionSettings(
        restart_limit=restart_limit,
        restart_period_s=restart_period_s,
        backoff_min_s=rare.backoff_min,
        backoff_max_s=rare.backoff_max,
    )


def _checked_engine(folder: str, options: dict[str, Any]) -> EngineSettings:
    engine = EngineSettings(model=folder, **options)
    check_model(engine)
    return engine


def check_model(engine: EngineSettings) -> None:
    """Look at the model's config, as far as the executor will.

    Raises `ModelFolderError`, and `InvalidParameter` for a length above the model's.
    """
    # The null executor computes nothing, so that any architecture will do.
    load = load_model_limits if engine.executor == "null" else load_model_config
    engine.model_len_of(load(engine.model).max_model_len)


def _check_address(host: str, port: int, *, is_open: bool) -> None:
    if not is_loopback(host) and is_open:
        raise KeyNeeded(
            "host", f"{host} can be reached from elsewhere: set an API key (--api-key) to allow it"
        )
    if not 0 <= port <= 65535:
        raise InvalidParameter("port", f"must be from 0 to 65535, not {port}")


def _check_edge(keys: tuple[str, ...], hosts: tuple[str, ...], origins: tuple[str, ...]) -> None:
    """What every frontend would stumble over, later and less clearly."""
    if not all(key.strip() for key in keys):
        raise InvalidParameter("api_key", "must not be empty: remove it, or set one")
    for name, policy in (("allowed_host", (hosts, ())), ("allowed_origin", ((), origins))):
        try:
            OriginPolicy.of(*policy)
        except ValueError as error:
            raise InvalidParameter(name, f"is wrong: {error}") from error


def log_settings(words: str, level: str) -> LogSettings:
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
