"""Engine rank of a request: `data_parallel_rank` in its body, or the header that goes before it.

Sans-IO: bodies in, bodies out. The runtime knows which ranks there are; here any number is one.
"""

import re

from ..errors import bad_field
from ..schema.fields import FunctionKind, IntegerKind, JsonObject
from ..schema.tables import Field

RANK, RANK_HEADER = "data_parallel_rank", "X-data-parallel-rank"
RANK_HEADER_NAME = RANK_HEADER.lower()  # as requests have it
_KIND = IntegerKind(minimum=0)
RANK_FIELD = Field(
    FunctionKind(_KIND.read, {**_KIND.schema(), "x-maximum": "engine"}),
    "The engine that answers, by its number; when it dies, its next life is waited for.",
)
_TEXT = re.compile("[0-9]{1,9}", re.ASCII)


def ranked(values: JsonObject, header: str | None) -> JsonObject:
    """A body, with the rank that a header names in the place of its own.

    Raises `ApiError` 400 for a header that is no number.
    """
    if header is None:
        return values
    if not _TEXT.fullmatch(header):
        raise bad_field(RANK_HEADER, "must be the number of an engine")
    return {**unranked(values), RANK: int(header)}


def unranked(values: JsonObject) -> JsonObject:
    """A body without a rank: the answer is the same whichever engine gives it."""
    bare = {name: value for name, value in values.items() if name != RANK}
    runtime = bare.get("runtime")
    if isinstance(runtime, dict) and RANK in runtime:
        bare["runtime"] = {name: value for name, value in runtime.items() if name != RANK}
    return bare
