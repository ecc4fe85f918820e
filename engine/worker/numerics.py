"""The numerics id: two workers with the same one compute the same bits from the same tokens.

A replay goes only onto an engine with the id of the one that died. So everything that decides about
bits is in it, and nothing that does not: no thread count, no number of blocks, no paths, no times.
Must not know what the numbers are used for.
"""

import hashlib
import pathlib
from collections.abc import Iterable, Mapping

from ..config import EngineSettings
from ..model.weight_folder import numerics_files
from ..model_config.config import CONFIG_FILE, ModelConfig


def file_digest(path: pathlib.Path) -> str:
    """SHA-256 of a file's contents, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def numerics_id(facts: Mapping[str, object], files: Iterable[pathlib.Path]) -> str:
    """Hash of named facts and of the files' names, sizes and contents, as `<executor>-<16 digits>`.

    `facts["executor"]` is the prefix. Order of facts does not matter.
    """
    whole = hashlib.sha256()
    for name in sorted(facts):
        whole.update(f"{name}={facts[name]}\n".encode())
    for path in sorted(files, key=lambda path: path.name):
        whole.update(f"{path.name} {path.stat().st_size} {file_digest(path)}\n".encode())
    return f"{facts['executor']}-{whole.hexdigest()[:16]}"


def model_numerics_id(
    facts: Mapping[str, object], settings: EngineSettings, config: ModelConfig
) -> str:
    """The same for the model that the settings name; dummy weights are no files of its folder."""
    folder = pathlib.Path(settings.model)
    dummy = settings.load_format == "dummy"
    of_model = {
        "load_format": "dummy" if dummy else "weights",
        "architecture": config.architecture,
    }
    files = [folder / CONFIG_FILE] if dummy else numerics_files(folder)
    return numerics_id({**facts, **of_model}, files)


def processor_name(cpuinfo: pathlib.Path = pathlib.Path("/proc/cpuinfo")) -> str:
    """Vendor, family and model of the processor: libraries choose their kernels by these.

    "unknown" if the platform does not say.
    """
    wanted = ("vendor_id", "cpu family", "model", "model name")
    found: dict[str, str] = {}
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return "unknown"
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            found.setdefault(name.strip(), value.strip())
    return "/".join(found[name] for name in wanted if name in found) or "unknown"
