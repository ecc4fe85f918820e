"""Lets `\\d` and `\\w` of a regular expression mean ASCII, as they do in JSON Schema's (ECMA 262).

llguidance takes them for all digits and letters of the newest Unicode: text that other readers, of
an older Unicode or of none, refuse. Must not know grammars or llguidance.
"""

_DIGITS = "0-9"
_WORD = "A-Za-z0-9_"
_CLASSES = {"d": _DIGITS, "w": _WORD}


def with_ascii_classes(pattern: str) -> str:
    """The same pattern with both classes written out; their complements stay what they are.

    A pattern that is broken comes back broken in the same way.
    """
    parts: list[str] = []
    in_class = escaped = False
    for character in pattern:
        if escaped:
            ranges = _CLASSES.get(character)
            if ranges is None:
                parts.append("\\" + character)
            else:
                parts.append(ranges if in_class else f"[{ranges}]")
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            # One at the beginning of a class is a member of it.
            member = character == "]" and in_class and parts[-1] in ("[", "[^")
            if character == "^" and in_class and parts[-1] == "[":
                parts[-1] = "[^"
                continue
            in_class = member or (character != "]" and (in_class or character == "["))
            parts.append(character)
    if escaped:
        parts.append("\\")
    return "".join(parts)
