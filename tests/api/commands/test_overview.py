"""What a viewer knows after its news: lines in order, rates, what happened."""

from typing import Any

import msgspec

from triolet.api.commands.overview import Overview
from triolet.runtime.control.calls import News

SNAPSHOT: dict[str, Any] = {
    "t": 10_000,
    "run": "ab",
    "model": "toy",
    "processes": [
        {"place": "root", "parent": None, "pid": 1, "state": "ready", "cpu": 0.1, "memory": 5},
        {"place": "engine 0", "parent": "root", "pid": 2, "state": "ready", "cpu": 0.0,
         "memory": 9, "reason": "", "can": ["kill"]},
        {"place": "frontend 0", "parent": "root", "pid": 3, "state": "ready", "cpu": 0.5,
         "memory": 7, "facts": {"requests": 2, "connections": 0}},
    ],
    "marks": [{"t": 9_000, "place": "engine 0", "kind": "ready", "text": "after 1 s"}],
}  # fmt: skip
FACTS = {"kv_blocks": 8, "kv_blocks_free": 6, "running": 2, "waiting": 1}
CHANGE: dict[str, Any] = {
    "t": 10_500,
    "processes": [
        {"place": "engine 0", "facts": FACTS},
        {"place": "engine 0 worker 0", "parent": "engine 0", "pid": 4, "state": "ready"},
    ],
    "steps": [{"place": "engine 0", "t": 10_500, "counts": [5, 5]}],
    "streams": [{"id": "r", "t": 10_500, "counts": [2, 4]}, {"id": "s", "state": "waiting"}],
}


def overview_of(*changes: dict[str, Any]) -> Overview:
    overview = Overview()
    texts = [msgspec.json.encode(change).decode() for change in changes]
    overview.handle_news(News(texts, is_whole=True))
    return overview


def test_each_process_is_above_its_own() -> None:
    lines = overview_of(SNAPSHOT, CHANGE).lines()
    assert [(line.depth, line.place) for line in lines] == [
        (0, "root"),
        (1, "engine 0"),
        (2, "engine 0 worker 0"),
        (1, "frontend 0"),
    ]
    assert lines[1].does == "2 running, 1 waiting, 5 steps/s, 2 of 8 KV blocks"
    assert lines[3].does == "requests 2"


def test_the_busiest_and_the_largest_go_first() -> None:
    overview = overview_of(SNAPSHOT)
    overview.choose_next_order()
    assert [line.place for line in overview.lines()] == ["frontend 0", "root", "engine 0"]
    overview.choose_next_order()
    assert [line.place for line in overview.lines()] == ["engine 0", "frontend 0", "root"]


def test_rates_are_of_the_last_seconds() -> None:
    assert overview_of(SNAPSHOT, CHANGE).head() == "toy  run ab  3 tokens/s  by place"
    later = {"t": 12_600}
    assert overview_of(SNAPSHOT, CHANGE, later).head() == "toy  run ab  0 tokens/s  by place"


def test_a_death_is_a_line_and_a_place_that_is_gone_is_not() -> None:
    died = {"t": 1, "place": "engine 0", "kind": "died", "text": "was killed"}
    change = {"t": 11_000, "gone": ["engine 0 worker 0", "unknown"], "marks": [died]}
    overview = overview_of(SNAPSHOT, CHANGE, change)
    assert overview.line("engine 0 worker 0") is None
    assert list(overview.marks) == [
        (9.0, "engine 0: ready after 1 s"),
        (0.001, "engine 0: died was killed"),
    ]


def test_a_snapshot_makes_void_what_was_known() -> None:
    overview = overview_of(SNAPSHOT, CHANGE)
    overview.handle_news(News([msgspec.json.encode(SNAPSHOT).decode()], is_whole=True))
    assert len(overview.lines()) == 3
    assert len(overview.marks) == 1


def test_why_there_is_no_process_is_said() -> None:
    row = {"place": "engine 0", "pid": 0, "state": "failed", "reason": "it died too often"}
    line = overview_of(SNAPSHOT, {"t": 11_000, "processes": [row]}).line("engine 0")
    assert line is not None
    assert (line.pid, line.state, line.does) == (0, "failed", "it died too often")


def test_no_escape_reaches_the_terminal() -> None:
    mark = {"t": 9_000, "place": "engine 0", "kind": "died", "text": "of \x1b]0;owned\x07"}
    overview = overview_of({**SNAPSHOT, "marks": [mark]})
    assert [text for _, text in overview.marks] == ["engine 0: died of \ufffd]0;owned\ufffd"]


HOST: dict[str, Any] = {
    "t": 20_000,
    "processes": [
        {"place": "host b", "parent": "root", "role": "host", "pid": 7, "state": "up",
         "since": 1_000, "facts": {"ranks": "4", "lease left": "3.1 s", "beats lost": 0}},
        {"place": "engine 4", "parent": "host b", "role": "engine", "pid": 8, "state": "ready"},
        {"place": "engine 4 worker 0", "parent": "engine 4", "pid": 9, "state": "ready"},
    ],
}  # fmt: skip


def test_a_host_is_above_its_engines_and_struck_with_them_while_it_is_silent() -> None:
    overview = overview_of(SNAPSHOT, HOST)
    names = ("host b", "engine 4", "engine 4 worker 0")
    lines = [line for line in overview.lines() if line.place in names]
    assert [(line.depth, line.state, line.is_struck) for line in lines] == [
        (1, "up", False),
        (2, "ready", False),
        (3, "ready", False),
    ]
    assert lines[0].does == "ranks 4, lease left 3.1 s"
    silent = {"place": "host b", "state": "silent", "since": 20_400}
    overview = overview_of(SNAPSHOT, HOST, {"t": 22_500, "processes": [silent]})
    lines = [line for line in overview.lines() if line.is_struck]
    assert [line.place for line in lines] == list(names)
    assert {line.state for line in lines} == {"silent"}
    assert lines[0].does == "silent for 2.1 s"
