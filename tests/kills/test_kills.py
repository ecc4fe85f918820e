"""Short forms of `python -m tests.kills`, and what its comparison finds when it is planted."""

import copy
import sys
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio

from triolet.fuzz.chaos.command import run_campaign, show
from triolet.fuzz.chaos.network.namespaces import NoNamespaces

from ..end_to_end.server import DEADLINE_S
from .answers import Answer, differences
from .campaign import ENGINE, FRONTEND, HOST, KEPT, RESUME, WORKER, KillOptions, run_kills
from .hosts import run_host_kills
from .report import STREAMS_MIN, Kill
from .slots import Slot
from .storm import StormOptions, StormPlan

# Clients of a busy machine lag behind, and few streams are in their midst for them: two will do.
# Connections may break by the kill of a frontend alone, the last one.
SHORT = KillOptions(
    kills=3,
    attempts=6,
    victims=(ENGINE, WORKER, FRONTEND),
    connections=RESUME,
    lanes=12,
    sockets=2,
    streams=6,
    tokens=120,
    period_s=0.5,
    held_s=0.5,
    streams_min=2,
)


@pytest.mark.slow
async def test_every_answer_goes_on_when_an_engine_a_worker_and_a_frontend_are_killed() -> None:
    with trio.fail_after(4 * DEADLINE_S):
        report = await run_kills(SHORT, sys.stdout.write)
    show(report)
    assert report.all_violations() == []
    kinds = [each.kind for each in report.outcomes]
    assert [kinds.count(f"kill {kind}") for kind in SHORT.victims] == [1, 1, 1]
    assert report.endings["answered"] >= len(SHORT.load("", None).slots)


# A host is switched off in the moment in which the only frontend dies.
SHORT_OF_HOSTS = attrs.evolve(SHORT, kills=1, victims=(HOST,), connections=KEPT, lanes=10, seed=12)


@pytest.mark.slow
async def test_every_answer_goes_on_when_machines_are_lost() -> None:
    with trio.fail_after(5 * DEADLINE_S):
        try:
            report = await run_host_kills(SHORT_OF_HOSTS, sys.stdout.write)
        except NoNamespaces as reason:
            pytest.skip(str(reason))
    show(report)
    assert report.all_violations() == []
    assert report.is_green()
    assert [each.kind for each in report.outcomes] == ["host off with frontend"]
    assert report.endings["answered"] >= len(SHORT_OF_HOSTS.load("", None).slots)


# How soon it is back is the command's affair, on a quiet machine.
STORM = StormOptions(seed=4, faults=20, patience=10.0)


@pytest.mark.slow
async def test_raw_streams_go_on_when_processes_die_at_random_moments() -> None:
    with trio.fail_after(10 * DEADLINE_S):
        report = await run_campaign(STORM, StormPlan.of(STORM))
    show(report)
    assert report.all_violations() == []
    assert report.is_green()
    assert report.killed >= len(report.outcomes) - 1, "at least one in each moment"


# ---- the comparison


def logprob(token: str, value: float) -> dict[str, Any]:
    """An entry with one alternative."""
    return {"token": token, "logprob": value, "top_logprobs": [{"token": "x", "logprob": -9.0}]}


def delta(index: int, *tokens: int, number: int) -> dict[str, Any]:
    """A delta of some tokens."""
    return {
        "type": "response.output_text.delta",
        "sequence_number": number,
        "token_index": index,
        "token_ids": list(tokens),
        "delta": "".join(f" {token}" for token in tokens),
        "logprobs": [logprob(str(token), -0.5) for token in tokens],
    }


CREATED = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1"}}
END = {
    "type": "response.incomplete",
    "sequence_number": 40,
    "response": {
        "id": "resp_1",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [{"id": "msg_1", "type": "message"}],
        "usage": {"output_tokens": 3, "input_tokens_details": {"cached_tokens": 0}},
    },
}
LANE = [CREATED, delta(0, 7, number=8), delta(1, 8, number=16), delta(2, 9, number=24), END]


def lane(events: list[dict[str, Any]]) -> Answer:
    """The answer of these events."""
    answer = Answer()
    for event in events:
        answer.see_event(event)
    return answer


def test_how_tokens_came_together_and_what_was_cached_is_no_difference() -> None:
    end = copy.deepcopy(END)
    end["response"]["usage"]["input_tokens_details"]["cached_tokens"] = 96  # type: ignore[index]
    end["response"]["id"] = end["response"]["output"][0]["id"] = "other"  # type: ignore[index]
    created = {**CREATED, "response": {"id": "other"}}
    merged = [created, delta(0, 7, number=8), delta(1, 8, 9, number=24), end]
    assert differences(lane(merged), lane(LANE)) == []


FAILED = {
    "type": "response.failed",
    "sequence_number": 40,
    "response": {"error": {"code": "engine_died", "message": "engine 0 died"}},
}


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([*LANE[:2], delta(1, 5, number=16), *LANE[3:]], "token_ids differ from 1 on"),
        ([*LANE[:2], *LANE[1:]], "event number 8 came after 8"),
        ([*LANE[:2], delta(2, 9, number=24), END], "token index 2 where 1 is next"),
        ([*LANE[:3], END], "token_ids differ from 2 on"),
        ([*LANE[:-1], {**END, "sequence_number": 41}], "last_number"),
        ([*LANE, LANE[1]], "came after the end"),
        ([*LANE[:-1], FAILED], "response.failed: engine_died: engine 0 died"),
        ([*LANE[:-1], {**END, "type": "response.completed"}], "kinds differ"),
        ([CREATED, {**CREATED, "type": "x", "sequence_number": 1}, *LANE[1:]], "kinds differ"),
        ([*LANE[:2], {**LANE[2], "delta": " 3"}, *LANE[3:]], "text differ from 3 on"),
        ([*LANE[:2], {**LANE[2], "logprobs": [logprob("8", -0.6)]}, *LANE[3:]], "logprobs"),
        ([*LANE[:-1], {**END, "response": {"status": "incomplete"}}], "usage"),
        ([{**CREATED, "response": {"id": "resp_2"}}, *LANE[1:]], "resp_1 is none of resp_2"),
    ],
    ids=str,
)
def test_what_differs_in_a_lane_is_found(events: list[dict[str, Any]], said: str) -> None:
    assert said in "; ".join(differences(lane(events), lane(LANE)))


def chunk(index: int = 0, *, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of one choice."""
    names = ("token_ids", "logprobs")
    outside = {name: fields.pop(name) for name in names if name in fields}
    return {"choices": [{"index": index, "delta": fields, "finish_reason": finish, **outside}]}


def call(name: str | None, arguments: str) -> dict[str, Any]:
    """A piece of a call."""
    return {"index": 0, "function": {"name": name, "arguments": arguments}}


CHAT = [
    chunk(content="a", token_ids=[1]),
    chunk(1, tool_calls=[call("tell", "{")], token_ids=[3]),
    chunk(content="b", token_ids=[2], logprobs={"content": [logprob("b", -0.1)]}),
    chunk(1, tool_calls=[call(None, "}")], token_ids=[4]),
    chunk(finish="stop"),
    chunk(1, finish="tool_calls"),
    {"choices": [], "usage": {"completion_tokens": 4}},
]


def chat(chunks: list[dict[str, Any]]) -> Answer:
    """The answer of these chunks, and then the stream's end."""
    answer = Answer()
    for each in chunks:
        answer.see_chunk(each)
    answer.end_chat()
    return answer


def test_choices_are_compared_each_in_its_own_order() -> None:
    assert differences(chat([CHAT[1], CHAT[0], *CHAT[2:]]), chat(CHAT)) == []
    assert chat(CHAT).choices[1].calls == {0: ["tell", "{}"]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda chunks: chunks[:-1], "over before its end"),
        (lambda chunks: [*chunks[:5], chunks[6]], "over before its end"),
        (lambda chunks: [*chunks[:3], *chunks[4:]], "choice 1: token_ids differ from 1 on"),
        (lambda chunks: [*chunks[:4], chunk(finish="length"), *chunks[5:]], "finish"),
        (lambda chunks: [*chunks[:5], chunks[0], *chunks[5:]], "went on after its end"),
        (lambda chunks: [chunks[0], chunks[2], chunks[4], chunks[6]], "choices [0], not [0, 1]"),
        (lambda chunks: [*chunks, {"error": {"code": "engine_died"}}], "error chunk"),
        (lambda chunks: [*chunks[:6], {"choices": [], "usage": {"completion_tokens": 3}}], "usage"),
    ],
)
def test_what_differs_in_a_chat_is_found(
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], said: str
) -> None:
    assert said in "; ".join(differences(chat(change(CHAT)), chat(CHAT)))


def test_a_chunk_that_comes_again_is_found() -> None:
    answer = Answer()
    for position in ("1.0", "2.0", "2.0"):
        answer.see_chunk(chunk(content="a"), position)
    assert answer.error == "2.0 came twice"


# ---- the report


@pytest.mark.parametrize(("hit", "error"), [(set(), ""), (None, "after engine 0 was killed")])
def test_a_connection_breaks_by_the_death_of_a_frontend_alone(
    hit: set[str] | None, error: str
) -> None:
    slot = Slot("lane-1", 1)
    slot.begin()
    slot.ask()
    assert slot.answer is not None
    slot.answer.see_event(LANE[1])
    kill = Kill("frontend 0" if error == "" else "engine 0", "", STREAMS_MIN, 9, hit=hit)
    slot.watch(kill)
    slot.break_off()
    slot.ask()
    assert error in slot.answer.error
    assert bool(slot.answer.error) == bool(error)
    assert kill.hit == (None if hit is None else {"lane-1"})
    assert (slot.asked, slot.asked_again, slot.breaks) == (1, 1, 1)
