"""The server fails no case of the Autobahn list; which it passes less strictly is written here.

Non-strict: a good message and a broken frame arrive in one read. The suite would like the echo of
the message before the connection fails; the guard refuses the whole read before anything of it is
parsed, and RFC 6455 (7.1.7) allows to drop what came with it.
"""

import attrs
import pytest
import trio
import trio.testing

from triolet.fuzz.doubles.served import FilteredStream

from .cases import Case, all_cases
from .client import ServerEnd, Verdict, run_case, serve_echo

NON_STRICT = {"3.2", "4.1.3", "4.1.4", "4.2.3", "4.2.4", "5.15"}
INFORMATIONAL = {"7.1.6", "7.13.1", "7.13.2"}
CASES = list(all_cases())
CASE_OF_NAME = {case.name: case for case in CASES}


def test_the_list_is_whole() -> None:
    assert len(CASES) == 301
    assert len(CASE_OF_NAME) == 301


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_case(case: Case, autojump_clock: trio.testing.MockClock) -> None:
    result = await run_case(case, serve_echo)
    if case.name in INFORMATIONAL:
        assert result.verdict is Verdict.INFORMATIONAL, result
    elif case.name in NON_STRICT:
        assert result.verdict is Verdict.NON_STRICT, result
    else:
        assert result.verdict is Verdict.OK, result


@pytest.mark.parametrize(
    ("old", "new", "name", "reason"),
    [
        # What a server may get wrong, as a change of what ours writes: a payload, a pong, the code
        # of a close, the close frame as a whole.
        (b"*", b"+", "1.1.2", "got (Message"),
        (b"ping", b"pong", "2.9", "got (Pong"),
        (b"\x03\xea", b"\x03\xe8", "2.5", "close code 1000"),
        (b"\x88\x02\x03\xe8", b"", "1.1.1", "the server sent no close frame"),
    ],
)
async def test_a_server_that_errs_is_found(
    old: bytes, new: bytes, name: str, reason: str, autojump_clock: trio.testing.MockClock
) -> None:
    async def serve(stream: ServerEnd) -> None:
        await serve_echo(FilteredStream(stream, lambda data: data.replace(old, new)))

    result = await run_case(CASE_OF_NAME[name], serve)
    assert result.verdict is Verdict.FAILED
    assert result.reason.startswith(reason)


async def test_a_server_that_takes_no_notice_is_found(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def serve(stream: ServerEnd) -> None:
        await serve_echo(Deaf(stream, lambda data: data))

    result = await run_case(CASE_OF_NAME["6.3.1"], serve)
    assert result.verdict is Verdict.FAILED
    assert result.reason == "the server did not end the connection"


@attrs.define(eq=False)
class Deaf(FilteredStream):
    """Reads nothing more once it has written its answer to the handshake."""

    _is_answered: bool = attrs.field(default=False, init=False)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._is_answered = True
        await super().send_all(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._is_answered:
            await trio.sleep_forever()
        return await super().receive_some(max_bytes)
