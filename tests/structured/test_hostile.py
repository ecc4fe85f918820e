"""Forms that cost what they can: each is refused by name or served, and nobody else notices."""

import json
from typing import Any

import pytest
import trio

import triolet
from triolet import SamplingParams, StructuredOutputs
from triolet.engine.errors import EngineError

DEADLINE_S = 120.0
CHAIN = {f"a{i}": {"items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(1000)}
DEEP: dict[str, Any] = {}
for _ in range(900):
    DEEP = {"items": DEEP}
RULES = "\n".join(f'r{i}: "a" r{i + 1} | "b"' for i in range(3000))
FORMS: list[tuple[str, str]] = [
    ("json_schema", json.dumps(DEEP)),
    ("json_schema", "[" * 60_000),
    ("json_schema", json.dumps({"$ref": "#/$defs/a0", "$defs": CHAIN})),
    ("json_schema", json.dumps({"$ref": "#"})),
    ("json_schema", json.dumps({"enum": [f"v{i}" for i in range(7000)]})),
    ("json_schema", json.dumps({"multipleOf": 999983, "type": "integer"})),
    ("json_schema", json.dumps({"const": "abc " * 15_000})),
    ("json_schema", json.dumps({"type": "array", "minItems": 10**9})),
    ("json_schema", json.dumps({"properties": {f"p{i}": {} for i in range(3000)}})),
    ("json_schema", '{"description": "%s"}' % ("x" * 1_000_000)),
    ("regex", "(a+)+(b|b)*(.*x.{200}){9}"),
    ("regex", "((a{1,100}){1,100}){1,100}"),
    ("regex", "a{100000}"),
    ("regex", "(" * 20_000 + ")" * 20_000),
    ("grammar", f'start: r0\n{RULES}\nr3000: "c"'),
    ("grammar", "start: A\nA: /.*a.{30}/ & ~/.*b.{31}/"),
    ("grammar", "start: start start | /a/ |"),
    ("grammar", "root ::= root"),
]


@pytest.mark.slow
async def test_hostile_forms_disturb_nobody() -> None:
    ended: list[str] = []
    refusals: list[str] = []

    async def ask(runtime: triolet.Runtime, kind: str, text: str) -> None:
        try:
            make = getattr(StructuredOutputs, {"json_schema": "json"}.get(kind, kind))
            params = SamplingParams(max_tokens=8, seed=1, structured_outputs=make(text))
            async with runtime.generate("a", params) as stream:
                await stream.collect()
        except EngineError as error:
            refusals.append(str(error))
        ended.append(kind)

    async def tell(runtime: triolet.Runtime) -> str:
        async with runtime.generate("Once", SamplingParams(max_tokens=120, seed=7)) as stream:
            await stream.collect()
        return stream.text

    with trio.fail_after(DEADLINE_S):
        async with triolet.open_runtime() as runtime:
            alone = await tell(runtime)
            async with trio.open_nursery() as nursery:
                for kind, text in FORMS:
                    nursery.start_soon(ask, runtime, kind, text)
                assert await tell(runtime) == alone
            assert len(ended) == len(FORMS)
            assert all("structured_outputs" in reason for reason in refusals), refusals
            assert await tell(runtime) == alone
