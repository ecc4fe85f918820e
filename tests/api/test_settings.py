"""Settings arrive at a frontend as they were made, and nothing that was not meant for it."""

from typing import Any

import attrs
import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.settings import (
    FREE_BYTES,
    LOCAL,
    InputShare,
    MemoryBudget,
    ServerLimits,
    ServerSettings,
    ServeSettings,
    SocketLimits,
    address_of,
    settings_of_text,
    settings_to_text,
)
from triolet.engine.config import EngineSettings
from triolet.runtime.config import RuntimeSettings, RuntimeTimes

from .fakes import make_application, open_client, open_connection
from .websocket.socket_client import open_socket

SETTINGS = ServerSettings(
    runtime=RuntimeSettings(
        engine=EngineSettings(model="/models/fox", executor="null", null_step_s=0.25),
        engines=3,
        times=RuntimeTimes(grace_s=7.5),
    ),
    serve=ServeSettings(
        api_keys=("one", "zwölf"),
        resume_keep_s=7,  # an int where a float is wanted
        allowed_hosts=("api.example",),
        limits=ServerLimits(socket=SocketLimits(age_s=12.5)),
    ),
)


def test_they_arrive_as_they_were_made() -> None:
    assert settings_of_text(settings_to_text(SETTINGS)) == SETTINGS


@pytest.mark.parametrize(
    "change", [{"colour": "red"}, {"resume_keep_s": "1"}, {"resume_keep_s": ...}], ids=str
)
def test_other_fields_and_types_are_refused(change: dict[str, Any]) -> None:
    value = msgspec.json.decode(settings_to_text(SETTINGS))
    serve = value["serve"] | change
    value["serve"] = {name: each for name, each in serve.items() if each is not ...}
    with pytest.raises(msgspec.ValidationError):
        settings_of_text(msgspec.json.encode(value).decode())


def test_keys_are_in_no_text_for_people() -> None:
    assert "zwölf" not in repr(SETTINGS)
    assert attrs.fields(ServeSettings).api_keys.repr is False


LARGE = 4 * FREE_BYTES


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3 * FREE_BYTES)), max_size=30))
def test_shares_add_up_within_the_bound(plan: list[tuple[int, int]]) -> None:
    budget = MemoryBudget(2 * FREE_BYTES)
    shares, sizes = [InputShare(budget) for _ in range(4)], [0] * 4
    for place, size in plan:
        before = budget.taken
        if shares[place].reserve(size):
            sizes[place] = size
        else:
            assert budget.taken == before
        assert budget.taken == sum(max(0, size - FREE_BYTES) for size in sizes)
        assert budget.taken <= budget.bytes_max
        assert size > FREE_BYTES or sizes[place] == size, "small ones are free"
    for share in shares:
        share.release()
    assert budget.taken == 0


def head(size: int, more: bytes = b"") -> bytes:
    start = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + more
    return start + (b"" if more else b"Content-Length: %d\r\n" % size) + b"\r\n"


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_that_finds_no_room_is_asked_to_come_again(
    is_chunked: bool, autojump_clock: trio.testing.MockClock
) -> None:
    application = make_application(limits=ServerLimits(input_bytes_max=LARGE))
    chunked = b"Transfer-Encoding: chunked\r\n" if is_chunked else b""
    body = b'{"prompt": "' + b"x" * LARGE + b'"}'
    framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if is_chunked else body
    async with open_client(application) as client, open_connection(application) as slow:
        await slow.send_all(head(LARGE) + b"{")
        await trio.testing.wait_all_tasks_blocked()
        assert application.inputs.taken == LARGE - FREE_BYTES
        await client.stream.send_all(head(len(body), chunked) + framed)
        refused = await client.read_answer_without_request()
        assert (refused.status, refused.error["code"]) == (503, "server_overloaded")
        assert refused.headers["connection"] == "close"
        assert "retry-after" in refused.headers
        async with open_client(application) as other:
            small = {"prompt": "x" * (FREE_BYTES // 2)}
            assert (await other.request("POST", "/tokenize", small)).status == 200
        await slow.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert application.inputs.taken == 0
        async with open_client(application) as other:
            await other.stream.send_all(head(len(body), chunked) + framed)
            assert (await other.read_answer_without_request()).status == 200
        assert application.inputs.taken == 0


async def test_a_message_that_finds_no_room_ends_its_socket_alone() -> None:
    application = make_application(limits=ServerLimits(input_bytes_max=LARGE))
    async with open_socket(application) as first:
        async with open_socket(application) as second:
            await first.send_part("x" * LARGE)
            await trio.testing.wait_all_tasks_blocked()
            assert application.inputs.taken == LARGE - FREE_BYTES
            await second.send_part("x" * LARGE)
            assert await second.receive() is None
            assert second.closed is not None
            assert second.closed[0] == 1013
        await first.send_part("", is_last=True)
        refused = await first.receive()
        assert refused is not None
        assert refused["error"]["code"] == "invalid_json"
        await trio.testing.wait_all_tasks_blocked()
        assert application.inputs.taken == 0
        await first.send_part("x" * LARGE)
        await trio.testing.wait_all_tasks_blocked()
    await trio.testing.wait_all_tasks_blocked()
    assert application.inputs.taken == 0


class FakeSocket:
    """Says what `getpeername` says."""

    def __init__(self, name: object) -> None:
        self.name = name

    def getpeername(self) -> object:
        if isinstance(self.name, OSError):
            raise self.name
        return self.name


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("203.0.113.9", 50000), "203.0.113.9"),
        (("127.0.0.1", 50000), LOCAL),
        (("127.3.2.1", 50000), LOCAL),
        (("::1", 50000, 0, 0), LOCAL),
        (("::ffff:127.0.0.1", 50000, 0, 0), LOCAL),
        (("::ffff:203.0.113.9", 50000, 0, 0), "203.0.113.9"),
        (("2001:db8:1:2:3:4:5:6", 50000, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 50000, 0, 2), "fe80::/64"),
        ("", LOCAL),
        (b"\x00abstract", LOCAL),
        ((), LOCAL),
        (("no address", 1), LOCAL),
        (OSError(107, "not connected"), LOCAL),
    ],
    ids=str,
)
def test_what_a_connection_is_counted_for(name: object, address: str) -> None:
    assert address_of(FakeSocket(name)) == address
