"""Options of the commands: the settings' own fields, flattened, and what only a command needs.

The command line's parser reads the annotations; `max_model_len` is `--max-model-len`. Whether the
values fit together, `plan` and the settings check.
"""

from typing import Annotated, Any, Literal

import attrs
from cyclopts import Group, Parameter

from ...engine.config import EngineSettings
from ...engine.errors import InvalidParameter
from ...runtime.config import HostSettings
from ..settings import ServerSettings

# In `config show`, in files and in the environment, but not in `--help`, which is for the first
# hour.
RARE = Parameter(show=False)
# Each field of the class is an option of the command.
FLAT = Parameter(name="*")
# Groups of `--help`, in this order. A setting without a group must be `rare`.
GROUPS = {
    "Model": "model revision served-model-name generation-config reasoning-parser chat-template"
    " max-model-len",
    "Conversation": "system temperature max-tokens seed",
    "Batch": "in-flight url",
    "Server": "host port api-key api-key-file admin-key admin-key-file allowed-host allowed-origin"
    " unknown-fields vllm-metrics resume-keep sse-keep-alive demo no-demo grace access-log"
    " throughput-log log-format log-level otlp-endpoint",
    "Processes": "engines frontends spare-engines spare-frontends workers threads",
    "Computing": "executor device max-num-seqs max-num-batched-tokens scheduling-policy",
    "Memory": "kv-blocks prefix-cache",
    "Routers": "kv-events-endpoint kv-events-replay-endpoint kv-events-token-ids",
    "When something dies": "replay-wait restart-limit restart-period journal no-journal"
    " adopted-keep takeover core-dumps",
    "Hosts": "join-port key advertise data-ports launcher hosts engines-per-host ray-address"
    " host-resources join name drain-grace",
    "Settings": "config help-all",
}
_GROUP_OF = {
    name: Group(title, sort_key=place)
    for place, (title, names) in enumerate(GROUPS.items())
    for name in names.split()
}


def options_of(settings: type[Any]) -> Any:
    """Options class of a tree of settings; `attrs.asdict` of an instance is shaped as the tree.

    A field with a sentence of help is an option. Those of a nested class stand beside their
    neighbours, unless their names are dotted, as `--limits.http.head-s`: in a file `head_s` below
    `[serve.limits.http]`, in the environment `TRIOLET_LIMITS_HTTP_HEAD_S`.
    """
    options: dict[str, Any] = {}
    for field in attrs.fields(settings):
        kind: Any = field.type
        if not attrs.has(kind):
            if field.metadata.get("help"):
                options[field.name] = _option(field)
            continue
        is_dotted = any("." in each.metadata.get("option", "") for each in attrs.fields(kind))
        kind = options_of(kind)
        note: Any = Annotated[kind, RARE if is_dotted else FLAT]
        options[field.name] = attrs.field(factory=kind, type=note)
    return attrs.make_class(f"OptionsOf{settings.__name__}", options, frozen=True, kw_only=True)


def _option(field: "attrs.Attribute[Any]") -> Any:
    """The field as an option; a list may be given often, and is empty unless given."""
    metadata = field.metadata
    name = metadata.get("option", "").rpartition(".")[2]
    name = name or field.name.removesuffix("_s").replace("_", "-")
    served = metadata.get("served")
    default = field.default if served is None else served
    more: dict[str, Any] = {}
    if default is True:
        more["negative"] = f"--no-{name}"
    if not field.repr:
        more["env_var"] = "TRIOLET_" + name.replace("-", "_").upper()
    is_shown = not metadata.get("rare", False)
    if is_shown:
        more["group"] = _GROUP_OF[name]
    note = Parameter(name=name, help=metadata["help"], show=is_shown, **more)
    choices = metadata.get("one_of")
    kind: dict[str, Any] = {"type": Annotated[Literal[choices] if choices else field.type, note]}
    return attrs.field(default=default, repr=field.repr, **kind)


EngineOptions = options_of(EngineSettings)
ServeOptions = options_of(ServerSettings)
DoorOptions = options_of(HostSettings)


def _note(name: str, sentence: str, *, env_var: str = "", may_be_dash: bool = False) -> Parameter:
    return Parameter(
        help=sentence,
        group=_GROUP_OF[name],
        env_var=env_var or None,
        allow_leading_hyphen=may_be_dash,
    )


MODEL_HELP = (
    "Folder in Hugging Face format, or ORG/NAME or ORG/NAME@REVISION of the hub;"
    " without it the bundled model."
)
# The positional argument of every command that has a model.
Model = Annotated[
    str | None,
    Parameter(
        help=MODEL_HELP,
        group=_GROUP_OF["model"],
    ),
]


HelpAll = Annotated[bool, _note("help-all", "Show every option, rarer ones too.")]


@attrs.frozen(kw_only=True)
class FileOptions:
    """Option of every command that has settings."""

    config: Annotated[
        str,
        _note(
            "config",
            "Settings file in TOML: a table per command, with the options' names as keys.",
        ),
    ] = ""


@attrs.frozen(kw_only=True)
class KeyFileOptions:
    """Files with keys, which are read once at the start; the settings have the keys alone."""

    api_key_file: Annotated[
        tuple[str, ...],
        _note("api-key-file", "File of API keys, one per line; repeatable."),
    ] = ()
    admin_key_file: Annotated[
        tuple[str, ...],
        _note("admin-key-file", "File of admin keys, one per line; repeatable."),
    ] = ()


@attrs.frozen(kw_only=True)
class BatchOptions:
    """Options of a batch: its server, its file. Raises `InvalidParameter`."""

    in_flight: Annotated[int, _note("in-flight", "Maximum number of concurrent requests.")] = 64
    engines: Annotated[int, _note("engines", "Engine processes; each has the whole model.")] = 1
    url: Annotated[
        str,
        _note("url", "Server to ask, as http://host:port; without it one is started."),
    ] = ""
    api_key: Annotated[str, _note("api-key", "Key to send.", env_var="TRIOLET_API_KEY")] = (
        attrs.field(default="", repr=False)
    )

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.in_flight <= 1024:
            raise InvalidParameter("in_flight", f"must be from 1 to 1024, not {self.in_flight}")


@attrs.frozen(kw_only=True)
class ChatOptions:
    """How answers are drawn."""

    system: Annotated[str, _note("system", "System message of the conversation.")] = ""
    temperature: Annotated[float, _note("temperature", "0 is greedy.")] = 0.7
    max_tokens: Annotated[int, _note("max-tokens", "Maximum length of an answer, in tokens.")] = 256
    seed: Annotated[int | None, _note("seed", "Same seed, same answers.")] = None


@attrs.frozen(kw_only=True)
class HostOptions:
    """Options of a host: its heads, its name, its engines on this machine."""

    join: Annotated[
        tuple[str, ...],
        _note("join", "Head to serve under, as HOST:PORT; repeatable, tried in turn."),
    ] = ()
    key: Annotated[
        str,
        _note(
            "key",
            "File of the cluster's keys (`triolet keygen`); -: a launcher's, on stdin.",
            may_be_dash=True,
        ),
    ] = ""
    name: Annotated[str, _note("name", "Name of this host; without it the machine's.")] = ""
    engines: Annotated[int, _note("engines", "Engine processes; each has the whole model.")] = 1
    spare_engines: Annotated[
        int, _note("spare-engines", "Warm spare processes, which replace engines that die.")
    ] = 1
    drain_grace: Annotated[
        float,
        _note("drain-grace", "Seconds to finish running requests here before others take them."),
    ] = 5.0
    device: Annotated[str, _note("device", "Device that PyTorch computes on.")] = "cpu"
    threads: Annotated[int, _note("threads", "Threads of each worker; 0: as the head has.")] = 0
