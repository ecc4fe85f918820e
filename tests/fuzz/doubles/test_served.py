"""A served bed answers, and what is wrong with it afterwards is noticed."""

import pytest
import trio

from triolet.fuzz.doubles.served import open_served, split_answer


@pytest.mark.slow
async def test_it_serves_and_is_unharmed() -> None:
    async with open_served() as served:
        await served.check_unharmed()
        status, body = await served.post("/v1/responses", b"{")
        assert status == 400
        assert body["error"]["code"]
        await served.check_unharmed()


@pytest.mark.slow
async def test_an_answer_that_was_500_is_harm() -> None:
    async with open_served() as served:
        served.application.counters.answers["GET", "/live", 500] += 1
        with pytest.raises(AssertionError, match="500"):
            await served.check_unharmed()


@pytest.mark.slow
async def test_a_descriptor_that_is_left_is_harm() -> None:
    async with open_served() as served:
        with trio.socket.socket(), pytest.raises(AssertionError, match="descriptor"):
            await served.check_unharmed()


def test_one_answer() -> None:
    assert split_answer(b"HTTP/1.1 200 OK\r\na: b\r\n\r\nhi")[::2] == (200, b"hi")
    for wrong in (b"", b"HTTP/1.1 200 OK\r\n", b"SSH-2.0\r\n\r\n"):
        with pytest.raises((AssertionError, ValueError)):
            split_answer(wrong)
