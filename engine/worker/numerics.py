"""The numerics id, and the logarithm that sampling is specified with.

Two workers with the same id compute the same bits from the same tokens; a replay goes only onto an
engine with the id of the one that died. So everything that decides about bits is in it, and nothing
that does not: no thread count, no number of blocks, no paths, no times. No torch here.
"""

import hashlib
import math
import pathlib
from collections.abc import Iterable, Mapping

from ..config import EngineSettings
from ..host import CPUINFO, first_processor
from ..model.weight_folder import numerics_files
from ..model_config.config import ModelConfig
from ..model_config.folder import CONFIG_FILE

# A temperature below this is greedy; vLLM's bound: a division would overflow before it made any
# difference.
GREEDY_BELOW = 1e-5
LN_2 = 0.6931471805599453
SQRT_HALF = 0.7071067811865476
# log((1 + s) / (1 - s)) = 2 (s + s**3 (1/3 + s**2/5 + …)); s**2 < 0.03, so this many reach 1e-17.
_SERIES = tuple(1.0 / divisor for divisor in range(21, 2, -2))


def numerics_id(facts: Mapping[str, object], files: Iterable[pathlib.Path]) -> str:
    """Hash of named facts and of the files' names, sizes and contents, as `<executor>-<16 digits>`.

    `facts["executor"]` is the prefix. Order of facts does not matter.
    """
    whole = hashlib.sha256()
    for name in sorted(facts):
        whole.update(f"{name}={facts[name]}\n".encode())
    for path in sorted(files, key=lambda path: path.name):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        whole.update(f"{path.name} {path.stat().st_size} {digest}\n".encode())
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
    if settings.revision:
        of_model["hub_revision"] = settings.revision
    files = [folder / CONFIG_FILE] if dummy else numerics_files(folder)
    return numerics_id({**facts, **of_model}, files)


def processor_name(cpuinfo: pathlib.Path = CPUINFO) -> str:
    """Vendor, family and model of the processor: libraries choose their kernels by these.

    "unknown" if the platform does not say.
    """
    wanted = ("vendor_id", "cpu family", "model", "model name")
    said = first_processor(cpuinfo)
    return "/".join(said[name] for name in wanted if name in said) or "unknown"


def exact_log(value: float) -> float:
    """Natural logarithm of a normal, positive number, to about an ulp; the same bits everywhere.

    Libraries differ in the last bit of theirs, and a drawn token may hang on it. This one is
    float64 additions, products and divisions in a fixed order, each rounded by itself.

    `value` = m · 2**k with m from sqrt(1/2) to sqrt(2); s = (m - 1) / (m + 1); p is the series in
    s·s by Horner; the result is k·ln 2 + 2·(s + (s·s²)·p), s² being s·s rounded.
    """
    mantissa, exponent = math.frexp(value)
    if mantissa < SQRT_HALF:
        mantissa, exponent = mantissa * 2.0, exponent - 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = _SERIES[0]
    for coefficient in _SERIES[1:]:
        series = series * square + coefficient
    return exponent * LN_2 + 2.0 * (s + s * square * series)
