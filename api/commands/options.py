"""Options of the commands: the settings' own fields, flattened, and what only a command needs.

The command line's parser reads the annotations; `max_model_len` is `--max-model-len`. Whether the
values fit together, `plan` and the settings check.
"""

from typing import Annotated, Any, get_origin

import attrs
from cyclopts import Parameter

from ...engine.config import EngineSettings
from ..settings import ServerSettings

# In `config show`, in files and in the environment, but not in `--help`, which is for the first
# hour.
RARE = Parameter(show=False)
# Each field of the class is an option of the command.
FLAT = Parameter(name="*")


def options_of(settings: type[Any]) -> Any:
    """Options class of a tree of settings; `attrs.asdict` of an instance is shaped as the tree.

    A field with a sentence of help is an option. A class whose fields have such sentences stands
    beside its neighbours, any other has dotted names, as `--limits.http.head-s`: in a file `head_s`
    below `[serve.limits.http]`, in the environment `TRIOLET_LIMITS_HTTP_HEAD_S`.
    """
    options: dict[str, Any] = {}
    for field in attrs.fields(settings):
        kind: Any = field.type
        if not attrs.has(kind):
            if field.metadata.get("help"):
                options[field.name] = _option(field)
            continue
        is_flat = any(each.metadata.get("help") for each in attrs.fields(kind))
        kind = options_of(kind) if is_flat else kind
        note: Any = Annotated[kind, FLAT if is_flat else RARE]
        options[field.name] = attrs.field(factory=kind, type=note)
    return attrs.make_class(f"OptionsOf{settings.__name__}", options, frozen=True, kw_only=True)


def _option(field: "attrs.Attribute[Any]") -> Any:
    """The field as an option; a list may be given often, and is empty unless given."""
    metadata = field.metadata
    name = metadata.get("option") or field.name.removesuffix("_s").replace("_", "-")
    served = metadata.get("served")
    more: dict[str, Any] = {}
    if get_origin(field.type) is tuple:
        more = {"negative": (), "show_default": False}
    if not field.repr:
        more["env_var"] = "TRIOLET_" + name.replace("-", "_").upper()
    note = Parameter(name=name, help=metadata["help"], show=not metadata.get("rare", False), **more)
    kind: dict[str, Any] = {"type": Annotated[field.type, note]}
    default = field.default if served is None else served
    return attrs.field(default=default, repr=field.repr, **kind)


EngineOptions = options_of(EngineSettings)
ServeOptions = options_of(ServerSettings)


def _field(default: Any, sentence: str) -> Any:
    """A field with its sentence of help."""
    return attrs.field(default=default, metadata={"help": sentence})


@attrs.frozen(kw_only=True)
class FileOptions:
    """Option of every command that has settings."""

    config: str = _field(
        "", "Settings file in TOML: a table for each command, keys as the options' names."
    )


@attrs.frozen(kw_only=True)
class ChatOptions:
    """How answers are drawn."""

    system: str = _field("", "System message of the conversation.")
    temperature: float = _field(0.7, "0 is greedy.")
    max_tokens: int = _field(256, "Longest answer, in tokens.")
    seed: int | None = _field(None, "Same seed, same answers.")
