"""Fuzzes the forms that answers are asked for: schemas, regexes, choices and grammars of any shape.

Invariant: each compiles or is refused by name, in bounded time; then every token that a mask allows
is accepted, and an output that ends is complete. What costs too much is among what is drawn: deep
nesting, chains of references, long enumerations, repetitions of repetitions, ambiguous rules, and
numbers at all boundaries in all keywords.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import attrs

from ...engine.core.grammar import RequestGrammar, mask_bytes
from ...engine.errors import InvalidParameter
from ...engine.grammar.text import check_grammar
from ...engine.model.bundled import bundled_model_folder
from ...engine.model_config.config import load_model_limits
from ...engine.process.grammar_compiler import GrammarCompiler
from ...engine.structured_outputs import GRAMMAR_CHARACTERS_MAX, GrammarKind, StructuredOutputs
from ..drawing import mutate, mutate_json
from ..fuzzer import Fuzzer, bare, each

# This process's CPU time for one form with its check; the slowest known takes 1 s here.
COMPILE_S_MAX = 20.0
MASKS_S_MAX = 20.0
# An event that takes longer does not even come back to be measured.
EVENT_S_MAX = 60.0
# Sort of a form that is about numbers.
NUMBERS = "numbers"
TOKENS_MAX = 16


@attrs.frozen
class Ask:
    """Form to check; `chance` decides which allowed tokens are taken, `sort` is its subject."""

    kind: GrammarKind
    text: str
    chance: int
    sort: str = ""


@attrs.frozen
class GrammarHost:
    """Compiler of forms, with its check."""

    compile: Callable[[StructuredOutputs], RequestGrammar]


SCHEMAS: Sequence[Any] = (
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
     "required": ["a"], "additionalProperties": False},
    {"type": "array", "items": {"enum": [1, "b", None]}, "minItems": 1, "maxItems": 3},
    {"anyOf": [{"type": "string", "pattern": "^[a-c]{2,5}$"}, {"type": "number", "minimum": 0}]},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {
        "next": {"$ref": "#/$defs/n"}}, "additionalProperties": False}}},
    {"type": "string", "format": "date-time", "maxLength": 40},
    {"allOf": [{"type": "integer", "multipleOf": 3}, {"minimum": 5, "maximum": 900}]},
    {"type": "object", "patternProperties": {"^x": {"const": 1}}, "maxProperties": 2},
)  # fmt: skip
KEYWORDS = ("multipleOf", "minItems", "maxLength", "pattern", "$ref", "enum", "format", "required",
            "additionalProperties", "anyOf", "not", "maximum")  # fmt: skip
ODD: Sequence[Any] = (True, None, 0, -1, 0.5, 1e308, "a", [], [None], {})
# Around them numbers of f64, i64 and u64 round, wrap or overflow.
EDGES = (0, 2**31, 2**53, 2**63, 2**64, *(10**digits for digits in range(15, 23)))
FLOATS = (0.1, 1e-7, 5e-324, 1e22, 1e300, 3.4028235e38, 1.7976931348623157e308, 2.0**63, 1.0)
NUMERIC = ("const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
           "multipleOf", "minLength", "maxLength", "minItems", "maxItems", "minProperties",
           "maxProperties", "default", "examples")  # fmt: skip
PATTERNS = ("[a-f]{3,8}", "(a|b)*c", "\\d{2}-\\w+", "(x+x+)+y", "(.*a.{20}){2}", "a{3}b?", "\\bx")
LARKS = (
    'start: "a" b+\nb: /[0-9]/ | "(" start ")"',
    'start: A | %json {"type": "boolean"}\nA: "x" | "y"',
    'root ::= "a" [b-d]* ("x" | root)?',
    'start: e\ne: e "+" e | /[0-9]/',
)


def draw_ask(chance: Random) -> Ask:
    """Forms as they should be, spoiled ones, and costly ones."""
    kind = chance.choice(list(GrammarKind))
    seed = chance.randrange(2**32)
    if chance.random() < 0.2:
        return Ask(*_costly(chance), seed)
    if chance.random() < 0.3:
        schema = json.dumps(_numeric(chance))
        if chance.random() < 0.7:
            return Ask(GrammarKind.JSON_SCHEMA, schema, seed, NUMBERS)
        return Ask(GrammarKind.GRAMMAR, f"start: %json {schema}", seed, NUMBERS)
    if chance.random() < 0.2:
        odd = {chance.choice(KEYWORDS): chance.choice(ODD) for _ in range(4)}
        return Ask(GrammarKind.JSON_SCHEMA, json.dumps(odd), seed)
    match kind:
        case GrammarKind.JSON_SCHEMA:
            schema = chance.choice(SCHEMAS)
            for _ in range(chance.randrange(3)):
                schema = mutate_json(chance, schema)
            return Ask(kind, json.dumps(schema), seed)
        case GrammarKind.JSON_OBJECT:
            return Ask(kind, "", seed)
        case GrammarKind.CHOICE:
            return Ask(kind, json.dumps(chance.choices(PATTERNS, k=chance.randrange(4))), seed)
        case _:
            texts = PATTERNS if kind is GrammarKind.REGEX else LARKS
            text = chance.choice(texts)
            if chance.random() < 0.6:
                text = mutate(chance, text.encode()).decode(errors="replace")
            return Ask(kind, text, seed)


def _numeric(chance: Random) -> Any:
    """Numbers at all boundaries in one or two keywords, alone or inside a schema."""
    schema: Any = {"type": kind} if (kind := chance.choice(("integer", "number", ""))) else {}
    for name in chance.sample(NUMERIC, chance.randrange(1, 3)):
        number: float = chance.choice(EDGES) + chance.randrange(-1030, 1030)
        if chance.random() < 0.2:
            number = chance.choice(FLOATS)
        number *= chance.choice((1, -1))
        schema[name] = [number, [number]] if name in ("enum", "examples") else number
    if chance.random() < 0.3:
        schema = {"type": "object", "properties": {chance.choice(NUMERIC): schema}}
    return {"anyOf": [schema, {"items": schema}]} if chance.random() < 0.2 else schema


def _costly(chance: Random) -> tuple[GrammarKind, str]:
    size = 10 ** chance.randrange(1, 4)
    chain = {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(size)}
    deep: Any = {}
    for _ in range(min(size, 300)):
        deep = {chance.choice(["items", "not", "anyOf"]): deep}
    patterns = chance.choices(PATTERNS, k=chance.randrange(2, 20))
    doubled = "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(min(size, 40)))
    schemas = [
        {"$ref": "#/$defs/a0", "$defs": {**chain, f"a{size}": {"type": "null"}}},
        deep,
        {"enum": [f"value {i}" for i in range(size * 3)]},
        {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(size)}},
        {"type": "integer", "multipleOf": chance.randrange(1, size * 1000)},
        {"type": "string", "minLength": size, "maxLength": size * 1000},
        {"type": "array", "minItems": size},
        {"const": "ab" * size},
        {"allOf": [{"pattern": f"{text}{i}"} for i, text in enumerate(patterns)]},
        {"patternProperties": {f"^a{i}$": {} for i in range(size)}},
        {"pattern": f"^(a{{1,{size}}}){{1,{size}}}$"},
        {"$ref": "#"},
    ]
    if chance.random() < 0.6:
        return GrammarKind.JSON_SCHEMA, json.dumps(chance.choice(schemas))
    if chance.random() < 0.5:
        texts = [f"(a{{1,{size}}}){{1,{size}}}", f"[ab]*a[ab]{{{size}}}", "(" * size + ")" * size,
                 "(?i)" + "[a-\U0010ffff]" * size]  # fmt: skip
        return GrammarKind.REGEX, chance.choice(texts)
    if chance.random() < 0.3:
        repeated = chance.choice(["\n", " \n", 'a"\\', "/\\", "a ", "start", "::=", "<", "a::=b\n"])
        begin = chance.choice(['start: "a"\n', "root ::= ", ""])
        text = begin + repeated * GRAMMAR_CHARACTERS_MAX
        return GrammarKind.GRAMMAR, text[:GRAMMAR_CHARACTERS_MAX]
    rules = "\n".join(f'r{i}: "a" r{i + 1} | "b"' for i in range(size))
    texts = [
        f'start: r0\n{doubled}\nr{min(size, 40)}: "b"?',
        f'start: r0\n{rules}\nr{size}: "c"',
        "start: " + "(" * size + '"a"' + ")" * size,
        "start: T0\n" + "\n".join(f"T{i}: T{i + 1} T{i + 1}" for i in range(size)),
        "start: A\nA: /.*a.{30}/ & ~/.*b.{31}/",
    ]
    return GrammarKind.GRAMMAR, chance.choice(texts)


def check(asks: Sequence[Ask], host: GrammarHost) -> Counter[str]:
    """Ask for each; see the module's invariant."""
    reached: Counter[str] = Counter()
    for ask in asks:
        began = time.process_time()
        try:
            grammar = host.compile(StructuredOutputs(ask.kind, ask.text))
        except InvalidParameter as error:
            reached["refused" if error.reason else "refused without a reason"] += 1
            continue
        finally:
            assert time.process_time() - began < COMPILE_S_MAX, "compiled for too long"
        reached["compiled"] += 1
        began = time.process_time()
        reached[_walk(grammar, Random(ask.chance))] += 1
        assert time.process_time() - began < MASKS_S_MAX, "masked for too long"
    return reached


def _walk(grammar: RequestGrammar, chance: Random) -> str:
    """Take allowed tokens; how it ended."""
    size = vocab_size()
    for _ in range(TOKENS_MAX):
        if grammar.is_terminated:
            return "complete"
        words = bytearray(mask_bytes(size))
        grammar.fill_mask(memoryview(words))
        allowed = [i for i in range(size) if words[i // 8] >> (i % 8) & 1]
        if not allowed:
            assert grammar.failure, "nothing is allowed, and nobody says why"
            return "limit"
        token_id = chance.choice(allowed)
        if token_id in ends():
            return "ended"
        accepted = grammar.accept(token_id)
        assert accepted or "oo many" in grammar.failure or "max is" in grammar.failure, (
            f"token {token_id} was allowed: {grammar.failure}"
        )
        if not accepted:
            return "limit"
    return "goes on"


@cache
def vocab_size() -> int:
    """The bundled model's."""
    return load_model_limits(bundled_model_folder()).vocab_size


@cache
def ends() -> frozenset[int]:
    """The bundled model's ends of sequence."""
    return frozenset(load_model_limits(bundled_model_folder()).eos_token_ids)


@cache
def _compiler() -> GrammarCompiler:
    compiler = GrammarCompiler(bundled_model_folder(), vocab_size())
    compiler.load()
    return compiler


def _compile(wanted: StructuredOutputs) -> RequestGrammar:
    check_grammar(wanted)
    return _compiler().compile(wanted, ends(), [])


@attrs.define(eq=False)
class _LooseGrammar:
    """Planted: its masks allow every token."""

    inner: RequestGrammar

    @property
    def is_terminated(self) -> bool:
        return self.inner.is_terminated

    @property
    def failure(self) -> str:
        return self.inner.failure

    def accept(self, token_id: int) -> bool:
        return self.inner.accept(token_id)

    def fill_mask(self, words: memoryview) -> None:
        words[:] = b"\xff" * len(words)


def _compile_loose(wanted: StructuredOutputs) -> RequestGrammar:
    return _LooseGrammar(_compile(wanted))


FUZZER = Fuzzer[Ask, GrammarHost](
    name="grammars",
    invariant="a form compiles or is refused by name, in bounded time, and masks tell the truth",
    draw=each(draw_ask),
    check=check,
    target=GrammarHost(_compile),
    faults={
        "what is wrong with a form comes up as it is": GrammarHost(
            bare(_compile, InvalidParameter)
        ),
        "masks allow every token": GrammarHost(_compile_loose),
    },
    round_events=40,
    smoke_rounds=5,
    reaches=frozenset({"compiled", "refused", "complete", "ended"}),
    event_s_max=EVENT_S_MAX,
)
