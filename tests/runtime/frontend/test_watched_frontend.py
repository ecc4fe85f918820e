"""A frontend that is watched: each stream's tokens in buckets, its state, and its end once."""

from typing import Any

import trio
import trio.testing

from triolet.engine.messages import FinishReason, StepOutputs
from triolet.runtime.frontend.ledger import Ledger
from triolet.runtime.frontend.watched_frontend import STREAMS_MAX, WatchedFrontend
from triolet.transports.links.channel import Peer

from ..journal.making import output, request

ENGINE = Peer("engine", 0, 1)


def outputs(first: int, ids: list[int], finish: FinishReason | None = None) -> StepOutputs:
    return StepOutputs(1, [output("r", 1, first, ids, finish)])


def watched() -> tuple[Ledger, WatchedFrontend]:
    ledger = Ledger()
    return ledger, WatchedFrontend("frontend 0", ledger, lambda: {"requests": len(ledger)})


def streams(frontend: WatchedFrontend, *, is_whole: bool = False) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = frontend.series(is_whole=is_whole).get("streams", [])
    for stream in found:
        assert stream.pop("place") == "frontend 0"
        stream.pop("t", None)
    return found


async def test_a_stream_from_its_first_token_to_its_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ledger, frontend = watched()
    frontend.begin()
    ledger.handle_add(request("r"), ENGINE, trio.current_time())
    await trio.sleep(2)
    frontend.sample()
    (first,) = streams(frontend)
    began = first.pop("start")
    assert first == {
        "id": "r", "engine": 0, "replayed": False, "state": "waiting", "tokens": 0
    }  # fmt: skip
    frontend.sample()
    ledger.handle_outputs(ENGINE, outputs(0, [1, 2]), trio.current_time())
    frontend.sample()
    assert streams(frontend) == [{"id": "r", "state": "streaming", "tokens": 2, "counts": [0, 2]}]
    assert streams(frontend) == []
    (whole,) = streams(frontend, is_whole=True)
    assert (whole["start"], whole["state"]) == (began, "streaming")
    ledger.handle_peer_gone(ENGINE, "died", trio.current_time())
    frontend.sample()
    assert streams(frontend) == [{"id": "r", "state": "unplaced", "engine": None}]


async def test_an_end_is_said_once_with_its_tokens() -> None:
    ledger, frontend = watched()
    ledger.handle_add(request("r"), ENGINE, trio.current_time())
    frontend.begin()
    last = outputs(0, [1], finish=FinishReason.STOP)
    ledger.handle_outputs(ENGINE, last, trio.current_time())
    frontend.sample()
    (stream,) = streams(frontend)
    assert (stream["state"], stream["tokens"], stream["counts"]) == ("finished", 1, [1])
    assert stream["end"] > 0
    frontend.sample()
    assert streams(frontend, is_whole=True) == []


async def test_as_many_are_followed_as_can_be_shown() -> None:
    ledger, frontend = watched()
    for number in range(STREAMS_MAX + 3):
        ledger.handle_add(request(f"r{number}"), ENGINE, trio.current_time())
    frontend.begin()
    (row,) = await frontend.look()
    assert row["facts"] == {"requests": STREAMS_MAX + 3, "streams_hidden": 3}
    assert len(streams(frontend)) == STREAMS_MAX
    ledger.handle_abort("r0", trio.current_time())
    frontend.sample()
    assert [stream["id"] for stream in streams(frontend)] == ["r0"]
    frontend.sample()
    assert [stream["id"] for stream in streams(frontend)] == [f"r{STREAMS_MAX}"]
