"""Text of a grammar: the form that a client asks for as llguidance reads it, or its refusal.

Used on both sides of the wire: a frontend checks before it sends anything, an engine compiles what
any frontend sent. Whatever llguidance does not implement it reports, and that report is the reason
of the refusal.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, assert_never

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

from ..errors import InvalidParameter
from ..structured_outputs import GrammarKind, StructuredOutputs
from .bounds import RULES_MAX, check_lark, check_numbers, check_pattern, check_schema
from .closed_objects import close_objects
from .numbers import exact_bounds
from .schema_patterns import repetitions
from .subschemas import ANNOTATIONS, join, rewritten, values_of
from .times import TIMES
from .unique_items import UniqueItems

# Work and memory of one grammar. Fuel of a step and items of a step bound one mask: the first to
# about 10 ms, the second to 200 ms (`matcher` bounds them together; grammars in use have
# under 2000); a lexer state has up to 2 kB. The first fuel and the sizes bound the compilation.
LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=5_000,
    max_lexer_states=20_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
# Keeps masks from looking ahead to the end of a text that is forced: 100 ms in one of 60 kB.
_PRAGMA = '%llguidance {"no_forcing": true}\n'
# By what a grammar is known to be Lark, as llguidance does; but not again from each blank line.
_LARK = re.compile(r"^[^\S\n]*(?:%llguidance\b|start\s*:)", re.MULTILINE)
# Repetitions of repetitions that are tried at admission: compilation does not show what they cost
# (2500 were fine, 3600 ran out). A trial takes 0.7 s at most.
REPETITIONS_MAX = 2000
SUSPECTS_MAX = 4
TRIED_BYTES = 1500
# Printable, letters first; the quotation mark would end the text.
_TRIED = sorted(set(range(32, 127)) - {ord('"')}, key=lambda byte: (not chr(byte).isalpha(), byte))
_BYTES = LLTokenizer("byte")
# Beginning of what the converter from GBNF writes.
_CONVERTED = "%llguidance {}\n"
# Between the tokens of JSON: no white space but one space behind a colon or a comma. A small model
# that likes it would never end, and a large one pays for it.
_JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
# The formats that llguidance knows; all others are annotations, as JSON Schema has them by default.
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
# Limit of llguidance's report, which may quote the whole grammar.
REASON_CHARACTERS_MAX = 300
# Meaning of `\d` and `\w` in a JSON Schema's patterns (ECMA 262).
_CLASSES = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}
# Pieces of a pattern, as far as classes go: a bracket at the beginning of one is its member.
_PATTERN_PIECE = re.compile(r"\\.|\[\^?\]?|.", re.DOTALL)
# Places in the text that we made of a client's; of no use to the client.
_EXCERPT = re.compile(r"\s*(\d+ \||\^|<non-verbose/>)")
_PLACE = re.compile(r"^(at \d+\(\d+\): )?(failed to compile JSON schema: )?")
# Keywords of JSON Schema that llguidance does not have, as a JSON array.
_KEYWORDS = re.compile(r"Unimplemented keys: (\[.*?\])")


def grammar_text(wanted: StructuredOutputs) -> str:
    """Text that a matcher is made of. Raises `InvalidParameter` if it is beyond the bounds."""
    return LLMatcher.grammar_from_lark(f"{_PRAGMA}{lark_text(wanted)}")


def lark_text(wanted: StructuredOutputs) -> str:
    """The same as a grammar in llguidance's Lark. Raises as above."""
    match wanted.kind:
        case GrammarKind.JSON_SCHEMA:
            return f"start: {json_term(check_schema(wanted.text))}"
        case GrammarKind.JSON_OBJECT:
            return f"start: {json_term({'type': 'object'})}"
        case GrammarKind.REGEX:
            check_pattern(wanted.text)
            return f"start: /{regex_to_lark(with_ascii_classes(wanted.text), '')}/"
        case GrammarKind.CHOICE:
            return "start: " + " | ".join(map(json.dumps, _choices(wanted.text)))
        case GrammarKind.GRAMMAR:
            text = wanted.text
            lark = text if _LARK.search(text) else _converted(text)
            check_lark(lark)
            return lark
        case _:
            assert_never(wanted.kind)


def check_grammar(wanted: StructuredOutputs) -> None:
    """Raise `InvalidParameter` of `structured_outputs`, with the reason, if it cannot be served.

    Blocks for milliseconds, of large schemas for some hundred; mostly without Python's lock.
    """
    text = grammar_text(wanted)
    matcher = LLMatcher(_BYTES, text, log_level=0, limits=LIMITS)
    if matcher.is_error() and _names_tokens(text):
        return
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        raise refused(matcher.get_error())
    suspects = {each for each in _patterns_of(wanted) if repetitions(each) > REPETITIONS_MAX}
    if len(suspects) > SUSPECTS_MAX:
        raise refused(f"more than {SUSPECTS_MAX} patterns repeat repetitions")
    for pattern in suspects:
        _try_pattern(pattern)


def _names_tokens(text: str) -> bool:
    """Whether a grammar fails only by tokens in it, which no vocabulary but the model's has.

    Raises `InvalidParameter` where it fails without a vocabulary as well.
    """
    is_error, reports = LLMatcher.validate_grammar_with_warnings(text, limits=LIMITS)
    if is_error:
        raise refused(reports[0])
    return any("no tokenizer" in report for report in reports)


def _patterns_of(wanted: StructuredOutputs) -> Iterator[str]:
    match wanted.kind:
        case GrammarKind.REGEX:
            yield f"^(?:{wanted.text})$"
        case GrammarKind.JSON_SCHEMA:
            for _, keyword, _, value in values_of(check_schema(wanted.text)):
                if keyword == "pattern" and isinstance(value, str):
                    yield value


def _try_pattern(pattern: str) -> None:
    """Refuse a pattern whose lexer runs out in the middle, if one repeated character shows it."""
    matcher = LLMatcher(
        _BYTES,
        LLMatcher.grammar_from_lark(
            f"{_PRAGMA}start: {json_term({'type': 'string', 'pattern': pattern})}"
        ),
        log_level=0,
        limits=LIMITS,
    )
    taken = quotation = ord('"')
    for _ in range(TRIED_BYTES):
        mask = b"" if matcher.is_stopped() else matcher.compute_bitmask()
        if matcher.is_error():
            raise refused(f"{matcher.get_error()} in pattern {pattern}")
        allowed = {byte for byte in _TRIED if mask and mask[byte // 8] >> (byte % 8) & 1}
        if taken not in allowed:
            taken = next(filter(allowed.__contains__, _TRIED), quotation)
        if not mask or (not matcher.consume_token(taken) and not matcher.is_error()):
            return


def refused(report: str) -> InvalidParameter:
    """The refusal for what llguidance reports."""
    lines = [line.strip() for line in report.split("\n") if _EXCERPT.match(line) is None]
    reason = _PLACE.sub("", " ".join(lines).strip())
    if (keywords := _KEYWORDS.search(report)) is not None:
        named = ", ".join(f"`{keyword}`" for keyword in json.loads(keywords[1]))
        reason = f"schemas with {named} are not supported"
    if "NoExtensionBias" in report:  # the lexer is told to read nothing
        reason = "nothing can match it"
    return InvalidParameter(
        "structured_outputs", f"cannot be served: {reason[:REASON_CHARACTERS_MAX]}"
    )


def _narrowed(schema: dict[str, Any], unique: UniqueItems) -> dict[str, Any]:
    """Narrow one schema, without those in it: patterns mean ASCII, times are what clocks show,
    numbers are exact, sets are written out, and what says nothing is not there."""
    found = {name: value for name, value in schema.items() if name not in ANNOTATIONS}
    if isinstance(pattern := found.get("pattern"), str):
        found["pattern"] = with_ascii_classes(pattern)
    if isinstance(properties := found.get("patternProperties"), dict):
        found["patternProperties"] = {
            with_ascii_classes(pattern): value for pattern, value in properties.items()
        }
    form = found.get("format")
    if isinstance(form, str) and (form in TIMES or form not in FORMATS):
        del found["format"]
    if isinstance(form, str) and form in TIMES:
        _add_pattern(found, TIMES[form])
    exact_bounds(found)
    unique.write_out(found)
    return found


def _add_pattern(schema: dict[str, Any], pattern: str) -> None:
    if "pattern" not in schema:
        schema["pattern"] = pattern
    else:
        join(schema, {"pattern": pattern})


def _converted(gbnf: str) -> str:
    """A GBNF grammar in Lark. The converter's time grows with the square of the rules."""
    if gbnf.count("::=") > RULES_MAX:
        raise refused(f"more than {RULES_MAX} rules")
    try:
        return str(gbnf_to_lark(gbnf)).removeprefix(_CONVERTED)
    except Exception as error:  # a firewall: it raises that very class for bad grammars
        raise refused(str(error) or "is nested too deep") from error


def json_term(schema: dict[str, Any] | bool) -> str:
    """JSON of a schema as a term of a Lark grammar. Raises `InvalidParameter` of bad options."""
    if isinstance(schema, bool):  # to which no options can be added
        schema = {} if schema else {"enum": []}
    options = schema.get("x-guidance", {})
    if not isinstance(options, dict):
        raise refused("x-guidance must be an object")
    unique = UniqueItems(schema)
    served: dict[str, Any] = rewritten(schema, lambda part: _narrowed(part, unique))
    served["x-guidance"] = {**_JSON_OPTIONS, **options}
    check_numbers(served)
    close_objects(served)
    return "%json " + json.dumps(served)


def _choices(text: str) -> list[str]:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refused(f"choices: {error}") from error
    if not isinstance(choices, list) or not all(isinstance(item, str) for item in choices):
        raise refused("choices must be an array of strings")
    return choices


def with_ascii_classes(pattern: str) -> str:
    """The pattern with `\\d` and `\\w` written out as ASCII; their complements stay what they are.

    llguidance takes them for all digits and letters of the newest Unicode: text that other readers,
    of an older Unicode or of none, refuse. A pattern that is broken comes back broken in the same
    way.
    """
    parts: list[str] = []
    in_class = False
    for piece in _PATTERN_PIECE.findall(pattern):
        in_class = piece[0] == "[" or (in_class and piece != "]")
        ranges = _CLASSES.get(piece, piece)
        parts.append(ranges if in_class or ranges is piece else f"[{ranges}]")
    return "".join(parts)
