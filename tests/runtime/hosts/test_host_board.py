"""Board of hosts: rows, reports, and what of a host's news viewers get, by the head's clock."""

import itertools
from typing import Any

import attrs
import msgspec
import pytest

from triolet.runtime.control.calls import EngineState
from triolet.runtime.hosts.host_board import LOST_SHOWN_MAX, HostBoard
from triolet.runtime.hosts.host_directory import HostDirectory, HostId
from triolet.runtime.hosts.host_messages import (
    HOST_WIRE,
    HostBeat,
    HostFigures,
    HostSnapshot,
    Join,
    LeaseSettings,
)
from triolet.runtime.hosts.lease import HostState, HostWatch
from triolet.runtime.messages import EngineMember, EngineMembership, HostReport

# Clocks of head and host in Unix milliseconds: they differ by more than any way lasts.
OURS, THEIRS = 5_000_000, 1_000_000


def text(**change: Any) -> str:
    return msgspec.json.encode({"t": THEIRS} | change).decode()


@attrs.define(eq=False)
class Bed:
    """A board with host b, which has engines 0 and 1, engine 1 ready."""

    board: HostBoard = attrs.field(init=False)
    directory: HostDirectory = attrs.field(init=False)
    watch: HostWatch = attrs.field(factory=lambda: HostWatch(LeaseSettings(), 0.0))

    def __attrs_post_init__(self) -> None:
        self.directory = HostDirectory("m", "1", itertools.count(1))
        self.board = HostBoard(self.directory)
        join = Join(wire=HOST_WIRE, version="1", name="b", incarnation=7, engines=2, model_hash="m")
        self.directory.handle_join(join, 0.0, set())
        states = EngineState.STARTING, EngineState.READY
        members = [
            EngineMember(rank=rank, epoch=1 + rank, state=state)
            for rank, state in enumerate(states)
        ]
        snapshot = HostSnapshot(1, EngineMembership(1, members))
        self.directory.handle_snapshot(HostId("b", 7), snapshot)
        self.board.handle_joined("b", range(2), self.watch)

    def news(self, *texts: str, now_ms: int = OURS) -> list[dict[str, Any]]:
        found = self.board.handle_news("b", texts, now_ms)
        return [msgspec.json.decode(each) for each in found]

    def row(self, now: float, now_ms: int = OURS) -> dict[str, Any]:
        (row,) = self.board.rows(now, now_ms)
        return row


def test_a_row_says_how_the_link_is() -> None:
    bed = Bed()
    figures = HostFigures(process_id=41, rss_bytes=9, cpu_s=2.0, round_trip_s=0.00042)
    bed.board.handle_figures("b", figures)
    bed.watch.handle_beat(HostBeat(3, 0), 0.5)
    row = bed.row(1.55)
    assert (row["place"], row["parent"], row["role"], row["pid"]) == ("host b", "root", "host", 41)
    assert row["state"] == "up"
    assert row["facts"] == {
        "ranks": "0, 1",
        "round trip": "0.4 ms",
        "lease left": "2.2 s",
        "beats lost": 2,
        "times lost": 0,
    }
    assert row["can"] == ["kill"]
    assert row.keys().isdisjoint({"cpu", "memory", "tasks"}), "the host says these"


def test_a_silence_is_shown_since_it_began() -> None:
    bed = Bed()
    bed.watch.handle_beat(HostBeat(1, 0), 0.0)
    assert bed.row(0.0)["since"] == OURS
    assert bed.watch.handle_timeout(1.05) is HostState.SILENT
    row = bed.row(1.05, OURS + 1050)
    assert (row["state"], row["since"]) == ("silent", OURS)
    assert bed.row(2.1, OURS + 2100)["since"] == OURS


def test_reports_count_engines_that_can_be_reached_and_remember_the_lost() -> None:
    bed = Bed()
    bed.board.handle_figures("b", HostFigures(process_id=41, rss_bytes=9, cpu_s=2.0, dropped=3))
    assert bed.board.reports(0.0) == [
        HostReport(
            name="b",
            state="up",
            engines_ready=1,
            rss_bytes=9,
            cpu_s=2.0,
            lease_left_s=bed.watch.lease_s,
            dropped=3,
        )
    ]
    bed.watch.handle_timeout(1.0)
    bed.directory.handle_state(HostId("b", 7), HostState.SILENT)
    (report,) = bed.board.reports(1.0)
    assert (report.state, report.engines_ready) == ("silent", 0)
    bed.board.handle_over("b", OURS, is_lost=True)
    assert bed.board.reports(1.0) == [HostReport(name="b", state="lost", times_lost=1)]
    bed.board.handle_joined("b", range(2), HostWatch(LeaseSettings(), 2.0))
    (report,) = bed.board.reports(2.0)
    assert (report.state, report.times_lost) == ("up", 1)


def test_a_host_that_leaves_is_not_lost_and_the_lost_are_not_remembered_without_end() -> None:
    bed = Bed()
    bed.board.handle_over("b", OURS, is_lost=False)
    assert bed.board.reports(0.0) == []
    for number in range(LOST_SHOWN_MAX + 3):
        bed.board.handle_joined(f"pod-{number}", range(1), bed.watch)
        bed.board.handle_over(f"pod-{number}", OURS, is_lost=True)
    names = {report.name for report in bed.board.reports(0.0)}
    assert names == {f"pod-{number}" for number in range(3, LOST_SHOWN_MAX + 3)}


def test_news_pass_by_the_clock_of_the_head() -> None:
    task = [0, "engine-0", "a step", THEIRS - 900, 1, THEIRS + 400]
    other = [1, "loop", None, None, 1, "cancelled"]
    rows = [
        {"place": "engine 1", "pid": 5, "since": THEIRS - 50, "tasks": [task, other]},
        {"place": "host b", "pid": 4},
    ]
    steps = [{"place": "engine 1", "t": THEIRS, "counts": [2]}]
    (change,) = Bed().news(text(processes=rows, steps=steps, marks=[{"t": 1}], run="x"))
    assert change == {
        "t": OURS,
        "processes": [
            {
                "place": "engine 1",
                "pid": 5,
                "since": OURS - 50,
                "tasks": [
                    [0, "engine-0", "a step", OURS - 900, 1, OURS + 400],
                    [1, "loop", None, None, 1, "cancelled"],
                ],
            },
            {"place": "host b", "pid": 4},
        ],
        "steps": [{"place": "engine 1", "t": OURS, "counts": [2]}],
    }


def test_the_news_that_were_least_late_tell_the_distance_of_the_clocks() -> None:
    bed = Bed()
    row = {"place": "engine 0", "since": THEIRS}
    bed.news(text(processes=[row]), now_ms=OURS)
    (late,) = bed.news(text(processes=[row]), now_ms=OURS + 700)
    assert late["processes"][0]["since"] == OURS
    bed.board.handle_watch()  # the host's clock was set, perhaps
    (again,) = bed.news(text(processes=[row]), now_ms=OURS + 700)
    assert again["processes"][0]["since"] == OURS + 700


@pytest.mark.parametrize(
    "said",
    [
        text(processes=[{"place": place}])
        for place in ("root", "engine 2", "engine", "host c", "host bb", "frontend 0", "")
    ]
    + [
        text(gone=["engine 0"]),  # which nobody knows of
        text(processes=[{"pid": 4}]),
        text(processes=[{"place": "engine 0", "tasks": [[1]]}]),
        text(processes="none"),
        text(marks=[{"place": "engine 0"}]),
        "{",
        "[]",
    ],
)
def test_what_is_not_a_hosts_own_or_cannot_be_read_is_not_passed_on(said: str) -> None:
    assert Bed().news(said) == []


def test_places_of_a_host_are_gone_with_it() -> None:
    bed = Bed()
    places = ["engine 0", "engine 0 worker 0", "host b spare engine 0", "host b"]
    bed.news(text(processes=[{"place": place} for place in places]))
    assert bed.news(text(gone=["engine 0 worker 0"]))[0]["gone"] == ["engine 0 worker 0"]
    over = msgspec.json.decode(bed.board.handle_over("b", OURS, is_lost=True))
    assert over == {"t": OURS, "gone": ["engine 0", "host b", "host b spare engine 0"]}
    assert list(bed.board.rows(0.0, OURS)) == []
