"""Reads the fields of a JSON object with their types checked; a wrong one names its path.

Sans-IO: values in, values or `ApiError` out. JSON null is an absent field, as OpenAI's SDKs send
it. Must not know which fields a protocol has: `responses_request` and `chat_request` say that.
"""

import attrs
import msgspec

from ..errors import ApiError, bad_field

JsonObject = dict[str, object]
# Opening ones, in strings as well: five megabytes of JSON quoted in a prompt have half of that.
BRACKETS_MAX = 2**18
_KINDS = {
    str: "a string",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    dict: "an object",
    list: "an array",
    type(None): "null",
}


def decode_object(data: bytes | str) -> JsonObject:
    """Parse one JSON object. Raises `ApiError` (400 `invalid_json`); nesting is bounded.

    It holds the loop, in a thread as well, as the parser keeps the interpreter's lock: 16 MiB of
    text take 8 ms, of numbers 150 ms, but of empty objects 2.3 s, hence the bound on those. Their
    brackets are counted wherever they stand, which is what takes no time.
    """
    if _count_brackets(data) > BRACKETS_MAX:
        raise ApiError(400, f"The body has over {BRACKETS_MAX} opening brackets", "invalid_json")
    try:
        value: object = msgspec.json.decode(data)
    except (ValueError, RecursionError):  # DecodeError and UnicodeDecodeError are ValueErrors
        raise ApiError(400, "The body is not valid JSON", "invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"The body must be a JSON object, not {kind(value)}", "invalid_json")
    return value


def _count_brackets(data: bytes | str) -> int:
    if isinstance(data, str):
        return data.count("{") + data.count("[")
    return data.count(b"{") + data.count(b"[")


def kind(value: object) -> str:
    """The JSON name of a value's type, with its article."""
    return _KINDS.get(type(value), "something else")


@attrs.frozen
class Fields:
    """One JSON object and the path that led to it (empty at the top)."""

    values: JsonObject
    path: str = ""

    def at(self, name: str) -> str:
        """The path of one field of this object."""
        return f"{self.path}.{name}" if self.path else name

    def get(self, name: str) -> object:
        """The raw value; None when it is absent or null."""
        return self.values.get(name)

    def string(self, name: str) -> str | None:
        """A string, or None when absent. Raises `ApiError`."""
        value = self.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong(name, "a string")

    def boolean(self, name: str) -> bool | None:
        """A boolean, or None when absent. Raises `ApiError`."""
        value = self.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise self._wrong(name, "true or false")

    def integer(self, name: str) -> int | None:
        """An integer (`3.0` counts), or None when absent. Raises `ApiError`."""
        value = self.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        raise self._wrong(name, "an integer")

    def number(self, name: str) -> float | None:
        """A number, or None when absent. Raises `ApiError`."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise bad_field(self.at(name), "is too large") from None
        raise self._wrong(name, "a number")

    def nested(self, name: str) -> "Fields | None":
        """A nested object, or None when absent. Raises `ApiError`."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, dict):
            return Fields(value, self.at(name))
        raise self._wrong(name, "an object")

    def array(self, name: str) -> list[object] | None:
        """An array, or None when absent. Raises `ApiError`."""
        value = self.get(name)
        if value is None or isinstance(value, list):
            return value
        raise self._wrong(name, "an array")

    def objects(self, name: str) -> "list[Fields] | None":
        """An array of objects, each with its own path. Raises `ApiError`."""
        values = self.array(name)
        if values is None:
            return None
        found = []
        for index, value in enumerate(values):
            path = f"{self.at(name)}[{index}]"
            if not isinstance(value, dict):
                raise bad_field(path, f"must be an object, not {kind(value)}", "invalid_type")
            found.append(Fields(value, path))
        return found

    def strings(self, name: str) -> list[str] | None:
        """An array of strings; one string counts as an array of one. Raises `ApiError`."""
        value = self.get(name)
        if isinstance(value, str):
            return [value]
        values = self.array(name)
        if values is None:
            return None
        found = []
        for index, item in enumerate(values):
            if not isinstance(item, str):
                path = f"{self.at(name)}[{index}]"
                raise bad_field(path, f"must be a string, not {kind(item)}", "invalid_type")
            found.append(item)
        return found

    def _wrong(self, name: str, wanted: str) -> ApiError:
        given = kind(self.get(name))
        return bad_field(self.at(name), f"must be {wanted}, not {given}", "invalid_type")
