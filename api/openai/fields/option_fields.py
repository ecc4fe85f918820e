"""Option fields of request bodies, as the declarations of `RequestOptions` have them.

Sans-IO: declarations in, a table of fields out. An option that is declared there is a field of the
`runtime` object of every protocol, with the same bound and sentence; what protocols name or bound
differently, or have no place for, is here. A header may name the engine, before the body does; the
runtime knows which engines there are.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ....engine.errors import InvalidParameter
from ....engine.request_options import NO_OPTIONS, OPTIONS, RequestOptions
from ....engine.sampling_params import TOKENS_MAX
from ...errors import bad_field, to_api_error
from ...schema.fields import FunctionKind, IntegerKind, JsonObject, Kind, TextKind
from ...schema.tables import Field
from ...settings import MERGE_MS_MAX
from .sampling_fields import kind_of

RANK, RANK_HEADER = "data_parallel_rank", "X-data-parallel-rank"
RANK_HEADER_NAME = RANK_HEADER.lower()  # as requests have it
_RANK_TEXT = re.compile("[0-9]{1,9}", re.ASCII)
PRIORITY_MAX = 2**31 - 1
# A day; a longer deadline is none.
DEADLINE_MS_MAX = 86_400_000
CACHE_SALT_CHARACTERS_MAX = 256
# How protocols call what `RequestOptions` calls otherwise: their times are whole milliseconds.
_NAMES = {"engine": RANK, "deadline_s": "deadline_ms", "merge_s": "merge_ms"}


def _milliseconds(minimum: int, maximum: int) -> Kind[float]:
    kind = IntegerKind(minimum=minimum, maximum=maximum)
    return FunctionKind(lambda value, path: kind.read(value, path) / 1000, kind.schema())


_RANK = IntegerKind(minimum=0)
# Kinds that do not follow from a bound: Python's bounds are those of the wire.
_OWN_KINDS: Mapping[str, Kind[Any]] = MappingProxyType(
    {
        "priority": IntegerKind(minimum=-PRIORITY_MAX, maximum=PRIORITY_MAX),
        "cache_salt": TextKind(characters_max=CACHE_SALT_CHARACTERS_MAX),
        "engine": FunctionKind(_RANK.read, {**_RANK.schema(), "x-maximum": "engine"}),
        "deadline_s": _milliseconds(1, DEADLINE_MS_MAX),
        "merge_s": _milliseconds(0, MERGE_MS_MAX),
        "credit": IntegerKind(minimum=0, maximum=TOKENS_MAX),
    }
)
# {its name in bodies: the option}.
_OPTION_OF = {_NAMES.get(name, name): name for name in OPTIONS}
OPTION_FIELDS: dict[str, Field] = {
    field: Field(_OWN_KINDS.get(name) or kind_of(OPTIONS[name].bound), OPTIONS[name].about)
    for field, name in _OPTION_OF.items()
}
RANK_FIELD = OPTION_FIELDS[RANK]
# Fields of Responses alone: its events merge text, its sockets grant more credit.
RESPONSES_OPTIONS = frozenset({"merge_ms", "credit"})
# Fields of chats and completions at their top level too, where vLLM's clients put them.
TOP_LEVEL_OPTIONS = ("priority", "cache_salt", RANK)


def request_options(values: Mapping[str, Any]) -> RequestOptions:
    """Options among the read values of a body's fields. Raises `ApiError`."""
    found = {_OPTION_OF[field]: value for field, value in values.items() if field in _OPTION_OF}
    if not found:
        return NO_OPTIONS
    try:
        return RequestOptions(**found)
    except InvalidParameter as error:
        raise to_api_error(error, _NAMES) from None


def top_level_options(
    values: Mapping[str, Any], names: tuple[str, ...] = TOP_LEVEL_OPTIONS
) -> dict[str, Any]:
    """Options that a body has at its top level; those of its `runtime` object go before them."""
    return {name: values[name] for name in names if name in values}


def ranked(values: JsonObject, header: str | None) -> JsonObject:
    """A body, with the rank that a header names in the place of its own.

    Raises `ApiError` 400 for a header that is no number.
    """
    if header is None:
        return values
    if not _RANK_TEXT.fullmatch(header):
        raise bad_field(RANK_HEADER, "must be the number of an engine")
    return {**unranked(values), RANK: int(header)}


def unranked(values: JsonObject) -> JsonObject:
    """A body without a rank: the answer is the same whichever engine gives it."""
    bare = {name: value for name, value in values.items() if name != RANK}
    runtime = bare.get("runtime")
    if isinstance(runtime, dict) and RANK in runtime:
        bare["runtime"] = {name: value for name, value in runtime.items() if name != RANK}
    return bare
