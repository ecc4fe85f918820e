"""Windows end in time; any of them brings the same stream, its beginning and end at once."""

from typing import Any

import attrs
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from triolet.api.limits import MERGE_MS_MAX, ServerLimits
from triolet.api.merge_window import MergeWindows
from triolet.runtime.generation import RequestEvent, RequestEventKind

from .fakes import FakeGenerator, HttpClient, Say, make_application, open_connection
from .socket_client import SocketClient, open_socket

DELTA = "response.output_text.delta"
TERMINALS = ("response.completed", "response.incomplete", "response.failed", "error")
SECONDS = st.floats(0, 1e6)


@given(SECONDS, st.floats(0.001, 1.0), SECONDS)
def test_what_comes_is_due_within_a_window_and_with_its_neighbours(
    origin_s: float, merge_s: float, since_s: float
) -> None:
    windows, now = MergeWindows(origin_s), origin_s + since_s
    end_s = windows.end(merge_s, now)
    assert now < end_s <= now + merge_s * 1.001
    later_s = now + (end_s - now) / 2
    assert windows.end(merge_s, later_s) == pytest.approx(end_s, abs=1e-6) or later_s == end_s
    assert windows.end(0.0, now) == now


@attrs.frozen
class Heard:
    """What a client was told, and when."""

    at_s: float
    event: dict[str, Any]

    @property
    def text(self) -> str:
        return str(self.event.get("delta", ""))


async def hear(client: SocketClient) -> list[Heard]:
    heard: list[Heard] = []
    while not heard or heard[-1].event["type"] not in TERMINALS:
        event = await client.receive()
        assert event is not None
        heard.append(Heard(trio.current_time(), event))
    return heard


def deltas(heard: list[Heard]) -> list[tuple[float, str]]:
    return [(round(each.at_s, 3), each.text) for each in heard if each.event["type"] == DELTA]


# A token every 10 ms.
STEADY = [Say(str(number), after_s=0.01) for number in range(10)]


async def test_a_socket_writes_once_a_window(autojump_clock: trio.testing.MockClock) -> None:
    async with open_socket(make_application(FakeGenerator(STEADY))) as client:
        await client.create("hi", runtime={"merge_ms": 42})
        heard = await hear(client)
    assert deltas(heard) == [(0.01, "0"), (0.042, "123"), (0.084, "4567"), (0.1, "89")]
    assert [each.event["sequence_number"] for each in heard] == [
        0,
        1,
        2,
        3,
        4,
        7,
        11,
        *range(13, 18),
    ]


async def test_lanes_of_a_socket_are_written_together(
    autojump_clock: trio.testing.MockClock,
) -> None:
    script = [Say("x", after_s=0.01) for _ in range(30)]
    async with open_socket(make_application(FakeGenerator(script))) as client:
        for lane in "abcd":
            await client.create("hi", lane, runtime={"merge_ms": 100})
        reads = client.reads
        for _ in range(4):
            await client.receive_until(*TERMINALS)
    # The opening, the first deltas, two windows, the ends: each may come in two or three reads.
    assert client.reads - reads <= 12


async def test_lanes_have_windows_of_their_own(autojump_clock: trio.testing.MockClock) -> None:
    scripts = {"slow": STEADY, "quick": [Say("q", after_s=0.01), Say("Q", after_s=0.015)]}
    async with open_socket(make_application(FakeGenerator(scripts=scripts))) as client:
        await client.create("slow", "a", runtime={"merge_ms": 1000})
        await client.create("quick", "b")
        quick = await hear(client)
        assert round(trio.current_time(), 3) == 0.025
        slow = await hear(client)
    assert "".join(each.text for each in quick + slow if each.event["stream_id"] == "b") == "qQ"
    assert [text for _, text in deltas(quick + slow)][-1] == "123456789"
    assert round(trio.current_time(), 3) == 0.1, "the end did not wait for the window"


async def test_the_server_says_what_requests_leave_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    application = make_application(FakeGenerator(STEADY), limits=ServerLimits(merge_ms=1000))
    async with open_socket(application) as client:
        await client.create("hi")
        assert [text for _, text in deltas(await hear(client))] == ["0", "123456789"]
        await client.create("hi", runtime={"merge_ms": 0})
        assert [text for _, text in deltas(await hear(client))] == list("0123456789")


async def test_server_sent_events_have_windows_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_connection(make_application(FakeGenerator(STEADY))) as stream:
        body = {"input": "hi", "stream": True, "runtime": {"merge_ms": 40}}
        client = HttpClient(stream)
        await client.send("POST", "/v1/responses", body)
        events = (await client.read_answer()).events()
    texts = [event["delta"] for event in events if event["type"] == DELTA]
    assert "".join(texts) == "0123456789"
    assert len(texts) <= 5
    assert texts[0] == "0"
    assert round(trio.current_time(), 3) == 0.1


# What a request says: how much text, how many tokens, after how long; some are events besides.
PIECES = st.builds(
    Say,
    st.sampled_from(["", "a", "bc", "é"]),
    tokens=st.integers(1, 4),
    after_s=st.sampled_from([0.0, 0.003, 0.01, 0.2]),
    events=st.sampled_from([(), (RequestEvent(RequestEventKind.PREEMPTED),)]),
)


async def stream_of(script: list[Say], merge_ms: int) -> list[dict[str, Any]]:
    async with open_socket(make_application(FakeGenerator(script))) as client:
        runtime = {"merge_ms": merge_ms, "token_ids": True, "events": True}
        await client.create("hi", "a", runtime=runtime)
        return [each.event for each in await hear(client)]


def whole(events: list[dict[str, Any]]) -> tuple[object, ...]:
    """What must not depend on windows."""
    told = [event for event in events if event["type"] == DELTA]
    numbers = [event["sequence_number"] for event in events if "runtime." not in event["type"]]
    assert numbers == sorted(set(numbers))
    return (
        "".join([event["delta"] for event in told]),
        [token_id for event in told for token_id in event["token_ids"]],
        [event["type"] for event in events if event["type"] != DELTA],
        [event["sequence_number"] for event in events if event["type"] != DELTA],
        events[-1]["response"]["output"][0]["content"],
    )


@settings(max_examples=30)
@given(st.lists(PIECES, min_size=1, max_size=12), st.integers(1, MERGE_MS_MAX))
def test_any_window_says_the_same_stream(script: list[Say], merge_ms: int) -> None:
    def run(merge_ms: int) -> list[dict[str, Any]]:
        clock = trio.testing.MockClock(autojump_threshold=0)
        return trio.run(stream_of, script, merge_ms, clock=clock)

    merged, unmerged = run(merge_ms), run(0)
    assert whole(merged) == whole(unmerged)
    # One more at most: a first delta is told at once, without what comes in the same moment.
    assert len(merged) <= len(unmerged) + 1
