"""The server that is pressed: its address, and one that ends with the block."""

import os

import pytest

from triolet.bench.load.client import Target
from triolet.bench.load.pressed_server import open_pressed_server, target_of
from triolet.engine.errors import InvalidParameter
from triolet.runtime.events import RunEvent, Serving


@pytest.mark.parametrize("url", ["https://h:1", "h:1", "http://h:x", "http://h:1/v1", "http://"])
def test_a_url_that_is_not_one_is_named(url: str) -> None:
    with pytest.raises(InvalidParameter, match="url"):
        target_of(url, "")


def test_a_url_is_host_and_port() -> None:
    assert target_of("http://h:8/", "k") == Target(host="h", port=8, key="k")
    assert target_of("http://[::1]", "") == Target(host="::1", port=80)


@pytest.mark.slow
async def test_a_server_is_started_for_the_block() -> None:
    events: list[RunEvent] = []
    opened = open_pressed_server(
        None,
        url="",
        api_key="",
        engine={"executor": "null"},
        engines=1,
        frontends=1,
        on_event=events.append,
    )
    async with opened as server:
        (serving,) = [event for event in events if isinstance(event, Serving)]
        assert serving.url == f"http://{server.target.address}"
        assert server.pid == os.getpid()


async def test_a_server_that_runs_is_not_ours_to_look_at() -> None:
    opened = open_pressed_server(
        None,
        url="http://h:8",
        api_key="k",
        engine={},
        engines=1,
        frontends=1,
        on_event=lambda _: None,
    )
    async with opened as server:
        assert (server.target, server.pid) == (Target(host="h", port=8, key="k"), 0)
