"""Some forms of each kind, hostile ones, and one whose engine dies, of the bundled model."""

import functools
import json
import pathlib
from typing import Any

import pytest
import trio

import triolet
from triolet.engine.errors import EngineError
from triolet.engine.kernels.library import native_fault
from triolet.engine.messages import FinishReason
from triolet.engine.model.bundled import bundled_model_folder
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.fuzz.doubles.bed import open_bed
from triolet.tests.structured.forms import Form, Verdict, all_forms, ask

DEADLINE_S = 120.0


def test_there_are_forms_enough_and_they_judge() -> None:
    forms = all_forms()
    assert len(forms) >= 200
    assert len({form.name for form in forms}) == len(forms)
    assert not any(form.matches('"no such answer') for form in forms if form.name[0] == "s")


@pytest.mark.slow
async def test_every_answer_has_the_form_that_was_asked_for() -> None:
    forms, verdicts = all_forms()[::8], list[Verdict]()

    async def ask_one(runtime: triolet.Runtime, place: int, form: Form) -> None:
        verdicts.append(await ask(runtime, form, place))

    with trio.fail_after(DEADLINE_S):
        async with triolet.open_runtime() as runtime, trio.open_nursery() as nursery:
            for place, form in enumerate(forms):
                nursery.start_soon(ask_one, runtime, place, form)
    assert len(verdicts) == len(forms)
    assert [verdict for verdict in verdicts if not verdict.is_valid] == []


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


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 8, "maxLength": 24},
        "legs": {"type": "integer", "minimum": 0, "maximum": 99},
        "friends": {"type": "array", "items": {"enum": ["fox", "hen"]}, "minItems": 3},
    },
    "required": ["name", "legs", "friends"],
    "additionalProperties": False,
}
PARAMS = SamplingParams(
    temperature=1.0, seed=5, max_tokens=200, structured_outputs=StructuredOutputs.json(SCHEMA)
)
ENGINE: dict[str, Any] = {
    "executor": "torch" if native_fault() else "native",
    "threads": 1,
    "kv_blocks": 64,
    "max_num_seqs": 4,
}
open_two = functools.partial(
    open_bed, pathlib.Path(bundled_model_folder()), engines=2, window_tokens=4, **ENGINE
)


@pytest.mark.slow
async def test_a_form_is_the_same_wherever_its_engine_died() -> None:
    async with open_two() as bed:
        async with bed.frontend.generate("The fox", PARAMS) as stream:
            await stream.collect()
        alone = stream.token_ids
        assert stream.finish_reason is FinishReason.STOP
        found = json.loads(stream.text)
    assert found.keys() == SCHEMA["properties"].keys()
    assert len(found["friends"]) >= 3
    assert len(alone) > 12, "there is something to cut"
    for cut in (1, len(alone) // 2, len(alone) - 5):
        async with open_two() as bed:
            async with bed.frontend.generate("The fox", PARAMS) as stream:
                while len(stream.token_ids) < cut:
                    await stream.__anext__()
                ranks = range(len(bed.servers))
                [lost] = [rank for rank in ranks if bed.servers[rank].core.unfinished_count()]
                bed.lose_engine(lost)
                await stream.collect()
            assert bed.frontend.statistics().frontend.requests_replayed_total == 1
        assert stream.token_ids == alone, f"cut after {cut}"
        assert json.loads(stream.text) == found
