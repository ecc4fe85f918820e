"""A storm counts what it did, and a server that does not serve is told."""

import os

import pytest
import trio

from triolet.fuzz.doubles.served import open_served
from triolet.fuzz.fuzzers.storm import (
    Press,
    ProcessWatch,
    ServerHurt,
    Storm,
    press_frames,
    press_handshake,
)


def make_storm(address: tuple[str, int], count: int) -> Storm:
    url = f"http://{address[0]}:{address[1]}"
    return Storm(url, count, seed=1, in_flight=4, watch=ProcessWatch(os.getpid()))


@pytest.mark.slow
@pytest.mark.parametrize(("press", "count"), [(press_handshake, 60), (press_frames, 5000)])
async def test_a_small_storm(press: Press, count: int) -> None:
    async with open_served() as served:
        storm = make_storm(served.address, count)
        await storm.run(press)
        assert count <= storm.done < count + 4 * 2000
        assert sum(storm.reached.values()) >= 4
        assert storm.watch.samples[-1].done == storm.done
        await served.check_unharmed()


async def test_many_at_once_are_all_counted() -> None:
    async def press(storm: Storm, chance: object) -> int:
        await trio.lowlevel.checkpoint()
        storm.reached["pressed"] += 1
        return 1

    async with open_served() as served:
        storm = make_storm(served.address, 50)
        await storm.run(press)
    assert storm.done == storm.reached["pressed"]


async def test_a_server_that_does_not_serve_is_hurt() -> None:
    async with open_served() as served:
        served.bed.lose_engine(0)
        with pytest.raises(ServerHurt, match="503"):
            await make_storm(served.address, 1).run(press_handshake)
