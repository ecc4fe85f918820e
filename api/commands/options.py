"""Options of the commands: one class for each group, with defaults and help.

The command line's parser reads the annotations; `max_model_len` is `--max-model-len`. Whether the
values fit together, `plan` and the settings check.
"""

from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter

from ...engine.config import EngineSettings
from ...nurseries.logs import LogSettings
from ...nurseries.processes.process import LadderTimes
from ...runtime.config import AdmissionLimits, InputLimits, StreamSettings, SupervisionSettings
from ..settings import GRACE_S, RESUME_KEEP_S, ServerLimits

_RESTARTS = SupervisionSettings()
_LOGS = LogSettings()
# In `config show`, in files and in the environment, but not in `--help`, which is for the first
# hour.
RARE = Parameter(show=False)
# Options that may be given often: empty unless given, and there is no option to say so.
Texts = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


def options_of(settings: type[Any]) -> type[Any]:
    """Options class of the fields of a settings class that have a sentence of help."""
    options = {}
    for field in attrs.fields(settings):
        if sentence := field.metadata["help"]:
            name = field.name.removesuffix("_s").replace("_", "-")
            note = Parameter(name=name, help=sentence, show=not field.metadata["rare"])
            kind: dict[str, Any] = {"type": Annotated[field.type, note]}
            options[field.name] = attrs.field(default=field.default, **kind)
    return attrs.make_class(f"OptionsOf{settings.__name__}", options, frozen=True, kw_only=True)


if TYPE_CHECKING:
    EngineOptions = EngineSettings
else:
    EngineOptions = options_of(EngineSettings)


def _option(default: Any, sentence: str) -> Any:
    """A field with its sentence of help."""
    return attrs.field(default=default, metadata={"help": sentence})


@attrs.frozen(kw_only=True)
class ServeOptions:
    """Where a server listens, for whom, and with how many processes."""

    host: str = _option("127.0.0.1", "Address to listen on.")
    port: int = _option(8000, "Port to listen on; 0 lets the system choose.")
    api_key: Annotated[Texts, Parameter(env_var="TRIOLET_API_KEY")] = attrs.field(
        default=(),
        repr=False,
        metadata={"help": "Key that clients must send; may be given often."},
    )
    admin_key: Annotated[Texts, Parameter(env_var="TRIOLET_ADMIN_KEY")] = attrs.field(
        default=(),
        repr=False,
        metadata={"help": "Key that opens admin routes, too; without any there are none."},
    )
    vllm_metrics: bool = _option(False, "Tell metrics under vLLM's names, too, for its dashboards.")
    allowed_host: Texts = attrs.field(
        default=(), metadata={"help": "Host header to accept besides localhost and addresses."}
    )
    allowed_origin: Texts = attrs.field(
        default=(), metadata={"help": "Browser origin to accept besides our own."}
    )
    engines: int = _option(1, "Engine processes; each has the whole model.")
    frontends: int = _option(1, "Frontend processes.")
    spare_engines: int = _option(1, "Processes that wait to be the next engine, where one dies.")
    spare_frontends: int = _option(
        1, "Processes that wait to be the next frontend, where one dies."
    )
    model_name: str = _option("", "What clients call the model.")
    generation_config: str = _option(
        "auto", "auto: the model's advice where a request leaves sampling open; or none."
    )
    log_format: str = _option(_LOGS.format, "human, or json: one object a line.")
    log_level: str = _option(_LOGS.level, "debug, info, warning or error.")
    grace: float = _option(GRACE_S, "Seconds to serve out after the first Ctrl-C.")
    resume_keep: float = _option(
        RESUME_KEEP_S, "Longest `runtime.keep_s`: seconds that a response outlives its reader."
    )
    restart_limit: int = _option(
        _RESTARTS.restart_limit,
        "A process that dies more often within the period is given up.",
    )
    restart_period: float = _option(
        _RESTARTS.restart_period_s, "Seconds over which its deaths are counted."
    )
    # Of restarts: the first delay, the longest.
    backoff_min: Annotated[float, RARE] = _RESTARTS.backoff_min_s
    backoff_max: Annotated[float, RARE] = _RESTARTS.backoff_max_s
    # Options by dotted names, as `--limits.http.head-s`. In a file: `head_s = 2` below
    # `[serve.limits.http]`. In the environment: `TRIOLET_LIMITS_HTTP_HEAD_S`.
    limits: Annotated[ServerLimits, RARE] = attrs.field(factory=ServerLimits)
    admission: Annotated[AdmissionLimits, RARE] = attrs.field(factory=AdmissionLimits)
    input: Annotated[InputLimits, RARE] = attrs.field(factory=InputLimits)
    streams: Annotated[StreamSettings, RARE] = attrs.field(factory=StreamSettings)
    ladder: Annotated[LadderTimes, RARE] = attrs.field(factory=LadderTimes)


@attrs.frozen(kw_only=True)
class FileOptions:
    """Option of every command that has settings."""

    config: str = _option(
        "", "Settings file in TOML: a table for each command, keys as the options' names."
    )


@attrs.frozen(kw_only=True)
class ChatOptions:
    """How answers are drawn."""

    system: str = _option("", "System message of the conversation.")
    temperature: float = _option(0.7, "0 is greedy.")
    max_tokens: int = _option(256, "Longest answer, in tokens.")
    seed: int | None = _option(None, "Same seed, same answers.")
