"""Reader of a model folder's small files, which come from anywhere and are checked in each field.

Every file is bounded and must be a plain one (a pipe would never end), every value is looked at
with the type and range it must have, and what is wrong is reported with the file's and field's
name.
"""

import json
import os
import pathlib
from collections.abc import Mapping

import attrs

from ...nurseries.processes.boot import SHORTAGES
from ..errors import ModelFolderError, ModelUnserved, NotAModelFolder

CONFIG_FILE = "config.json"
# The largest config.json among popular models is below 100 kB (long lists of layer types).
CONFIG_BYTES_MAX = 4 * 2**20
# No number of a config is near either; what is computed from two of them stays finite.
NUMBER_MIN = 1e-20
NUMBER_MAX = 1e12


@attrs.frozen
class ConfigFields:
    """Typed look at the fields of one JSON object; `path` is for the errors.

    A field that is null is one that is missing: it takes the default, and without one is refused.
    All methods raise `ModelFolderError`.
    """

    path: str
    values: Mapping[str, object]

    def fault(self, name: str, reason: str) -> ModelFolderError:
        """The error that says what is wrong with the field `name`."""
        return ModelFolderError(self.path, f"{name} {reason}")

    def unserved(self, name: str, reason: str) -> ModelUnserved:
        """The error that says which value of the field `name` there is no code for."""
        return ModelUnserved(self.path, f"{name} {reason}")

    def integer(
        self, name: str, largest: int, *, least: int = 1, default: int | None = None
    ) -> int:
        """A whole number from `least` to `largest`."""
        value = self._value(name, default)
        if type(value) is not int or not least <= value <= largest:
            bounds = f"from {least} to {largest}"
            raise self.fault(name, f"must be a whole number {bounds}, not {value!r:.40}")
        return value

    def number(
        self,
        name: str,
        *,
        least: float = NUMBER_MIN,
        largest: float = NUMBER_MAX,
        default: float | None = None,
    ) -> float:
        """A finite number from `least` to `largest`."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fault(name, f"must be a number, not {value!r:.40}")
        if not least <= value <= largest:
            raise self.fault(name, f"must be from {least:g} to {largest:g}, not {value!r:.40}")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._value(name, default)
        if type(value) is not bool:
            raise self.fault(name, f"must be true or false, not {value!r:.40}")
        return value

    def mapping(self, name: str) -> Mapping[str, object] | None:
        """An object; None if there is none."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.fault(name, "must be an object")
        return value

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """Token id or list of them, all below `vocab_size`; none without the field."""
        value = self.values.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(type(token_id) is not int or not 0 <= token_id < vocab_size for token_id in ids):
            bounds = f"token ids from 0 to {vocab_size - 1} (vocab_size)"
            raise self.fault(name, f"must be {bounds}, not {value!r:.40}")
        return tuple(ids)

    def _value(self, name: str, default: object) -> object:
        value = self.values.get(name)
        return default if value is None else value


def check_folder(folder: pathlib.Path) -> None:
    """Raises `NotAModelFolder` for a path that is missing, no folder, empty, or has no config."""
    if not folder.exists():
        reason = "there is no such folder. Models of the hub are named ORG/NAME"
    elif folder.suffix == ".gguf":
        reason = "GGUF files are not supported; use the folder with the model's safetensors"
    elif not folder.is_dir():
        reason = "is a file; name the folder that has the model's config.json and safetensors"
    elif _has_entry(folder, CONFIG_FILE):
        return
    elif _has_entry(folder):
        reason = f"is not a model folder: it has no {CONFIG_FILE}; choose another model"
    else:
        reason = "is empty. Download a model into it: hf download ORG/NAME --local-dir FOLDER"
    raise NotAModelFolder(folder, reason)


def _has_entry(folder: pathlib.Path, name: str = "") -> bool:
    """Whether the folder has this entry, or any; one that cannot be read may have it."""
    try:
        with os.scandir(folder) as entries:
            return any(entry.name == name or not name for entry in entries)
    except PermissionError:
        return True


def read_fields(path: pathlib.Path, bytes_max: int = CONFIG_BYTES_MAX) -> ConfigFields:
    """The JSON object in a file. Raises `ModelFolderError`."""
    return ConfigFields(str(path), read_object(path, bytes_max))


def read_object(path: pathlib.Path, bytes_max: int = CONFIG_BYTES_MAX) -> dict[str, object]:
    """The JSON object in a file. Raises `ModelFolderError`, naming the file and the fault."""
    return object_of(path, read_bytes(path, bytes_max))


def object_of(path: pathlib.Path, content: bytes) -> dict[str, object]:
    """The JSON object that a file holds. Raises `ModelFolderError`, naming the file."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(path, f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFolderError(path, "is not a JSON object")
    return value


def check_link(path: pathlib.Path) -> None:
    """Raises `ModelFolderError` for a link that ends outside of the model: it may show any file.

    It may end in its folder, or in `blobs` of the hub's cache, whose snapshots consist of links.
    """
    if not os.path.islink(path):  # which raises for no name, however long
        return
    folder, target = (pathlib.Path(os.path.realpath(place)) for place in (path.parent, path))
    is_cached = folder.parent.name == "snapshots"
    within = (folder, folder.parents[1] / "blobs") if is_cached else (folder,)
    if not any(target.is_relative_to(place) for place in within):
        raise ModelFolderError(path, "is a link out of the folder; put the file itself there")


def read_bytes(path: pathlib.Path, bytes_max: int) -> bytes:
    """A file's contents. Raises `ModelFolderError` if it is none, unreadable or too large;
    `OSError` of `SHORTAGES`."""
    try:
        check_link(path)
        if path.exists() and not path.is_file():
            raise ModelFolderError(path, "is not a file")
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        if error.errno in SHORTAGES:
            raise
        raise ModelFolderError(path, f"cannot be read: {error.strerror}") from error
    if len(content) > bytes_max:
        raise ModelFolderError(path, f"is larger than {bytes_max} bytes")
    return content
