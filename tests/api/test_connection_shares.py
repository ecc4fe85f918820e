"""Shares of connections: memory for input that is not whole, and addresses they are counted for."""

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.connection_shares import FREE_BYTES, LOCAL, InputShare, MemoryBudget, address_of
from triolet.api.settings import ServerLimits

from .fakes import make_application, open_client, open_connection
from .websocket.socket_client import open_socket

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
