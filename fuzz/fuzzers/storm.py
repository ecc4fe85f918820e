"""Storm: presses a running server with connections or frames, and watches its processes.

The judgement: the same processes afterwards, memory flat once warm, and it still serves.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from urllib.parse import urlsplit

import attrs
import trio

from ...runtime.control.run_folder import live_runs
from ..doubles.served import CAME_LATE, PLAIN, split_answer
from ..doubles.tcp_client import RECEIVE_BYTES, Ending, converse, reset
from ..doubles.websocket_frames import HANDSHAKE, draw_script, frame
from ..observers import Cost, costs_of_tree
from .connections import draw_connection
from .frames import read_close_code

# Allocators and caches fill in the first part of a run; what grows afterwards is a leak.
WARM_SHARE = 0.3
# Growth that may still come after: pages that an allocator touches late. A leak of 100 bytes for
# each of 100 000 connections is 10 MiB.
GROWTH_MIB_MAX = 4.0


class ServerHurt(Exception):
    """The server is not as it was; says what has changed."""


class ServerUnknown(Exception):
    """No server of this user on this machine has the URL."""


@attrs.frozen
class Sample:
    """Sample of all processes; `done` is how much of the work was done by then."""

    done: int
    costs: dict[str, Cost]


@attrs.define(eq=False)
class ProcessWatch:
    """Made before the storm. `sample` as often as you like, then `judge`."""

    root_pid: int
    samples: list[Sample] = attrs.field(factory=list)

    @classmethod
    def of_url(cls, url: str) -> "ProcessWatch":
        """Watch the server with this URL. Raises `ServerUnknown`."""
        pids = [run.facts.pid for run in live_runs() if run.facts.url == url.rstrip("/")]
        if not pids:
            raise ServerUnknown(f"no running server of yours on this machine has the URL {url}")
        return cls(pids[0])

    def sample(self, done: int) -> None:
        """Look at all processes."""
        self.samples.append(Sample(done, costs_of_tree(self.root_pid)))

    def judge(self) -> None:
        """Raises `ServerHurt` for a process that was replaced or that grew once it was warm."""
        first, last = self.samples[0].costs, self.samples[-1].costs
        pids = [{name: cost.pid for name, cost in costs.items()} for costs in (first, last)]
        if pids[0] != pids[1]:
            raise ServerHurt(f"processes were {pids[0]} and are {pids[1]}")
        for name in first:
            growth = self.growth_mib(name)
            if growth > GROWTH_MIB_MAX:
                raise ServerHurt(f"{name} grew by {growth:.1f} MiB when it was warm")

    def growth_mib(self, name: str) -> float:
        """Growth of the line through the warm samples, from their first to their last."""
        warm_from = self.samples[-1].done * WARM_SHARE
        points = [
            (float(sample.done), sample.costs[name].resident_mib)
            for sample in self.samples
            if sample.done >= warm_from and name in sample.costs
        ]
        return slope(points) * (points[-1][0] - points[0][0]) if points else 0.0

    def lines(self) -> list[str]:
        """A table of all processes."""
        first, last = self.samples[0].costs, self.samples[-1].costs
        rows = [
            f"{'process':12} {'pid':>8} {'then':>8} {'RSS MiB':>8} {'then':>8}  warm growth   CPU s"
        ]
        for name, cost in first.items():
            after = last.get(name)
            if after is None:
                rows.append(f"{name:12} {cost.pid:8}     gone")
                continue
            rows.append(
                f"{name:12} {cost.pid:8} {after.pid:8} {cost.resident_mib:8.1f}"
                f" {after.resident_mib:8.1f} {self.growth_mib(name):8.2f} MiB"
                f" {after.cpu_s - cost.cpu_s:7.1f}"
            )
        return rows


def slope(points: list[tuple[float, float]]) -> float:
    """Least squares; 0 for points that have no extent."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / max(1, count)
    mean_y = sum(y for _, y in points) / max(1, count)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return 0.0
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


# Time for one connection; a busy machine serves late, a stuck server never.
DEADLINE_S = 60.0
SAMPLES = 60
# Frames of one connection at most; it ends at its first violation, which is its last frame.
FRAMES_MAX = 1500
# Share of the handshakes that wait for the answer and are reset within frames.
ANSWERED_SHARE = 0.3


# Makes one connection and returns how much it counts.
Press = Callable[["Storm", Random], Awaitable[int]]


@attrs.define(eq=False)
class Storm:
    """Storm of connections. `done` counts what the server has provably taken, up to `count`."""

    url: str
    count: int
    seed: int
    in_flight: int
    watch: ProcessWatch
    reached: Counter[str] = attrs.field(factory=Counter, init=False)
    done: int = attrs.field(default=0, init=False)

    @property
    def address(self) -> tuple[str, int]:
        """Address on which the server listens."""
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80

    async def run(self, press: Press) -> None:
        """Press until enough is done; then the server must serve. The watch is not judged here.

        `press(storm, chance)` makes one connection and returns how much it counts. Raises
        `ServerHurt`, `ServerStuck`, `AssertionError` for an answer that is none.
        """
        await self.check_serves()
        self.watch.sample(0)
        async with trio.open_nursery() as nursery:
            for number in range(self.in_flight):
                nursery.start_soon(self._press_on, press, Random(f"storm {self.seed} {number}"))
        await self.check_serves()
        self.watch.sample(self.done)

    async def _press_on(self, press: Press, chance: Random) -> None:
        while self.done < self.count:
            counted = await press(self, chance)
            before, self.done = self.done, self.done + counted
            step = max(1, self.count // SAMPLES)
            if before // step != self.done // step:
                self.watch.sample(self.done)

    async def check_serves(self) -> None:
        """A plain request is answered. Raises `ServerHurt`."""
        head = (
            b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(PLAIN)
        )
        left = await converse(self.address, (head, PLAIN), Ending.WAIT, deadline_s=DEADLINE_S)
        status, _, body = split_answer(left.received)
        if status != 200:
            raise ServerHurt(f"a plain request is answered {status}: {body[:300]!r}")


async def press_handshake(storm: Storm, chance: Random) -> int:
    """Reset a connection at a random byte: of its head, or of frames after the answer."""
    with trio.move_on_after(DEADLINE_S) as scope:
        stream = await trio.open_tcp_stream(*storm.address)
        try:
            if chance.random() < ANSWERED_SHARE:
                await stream.send_all(HANDSHAKE)
                answer = await stream.receive_some(RECEIVE_BYTES)
                status = bytes(answer)[:13]
                # 408 where the machine is so busy that our own bytes came late.
                assert status in (b"HTTP/1.1 101 ", b"HTTP/1.1 408 "), bytes(answer)[:200]
                data = frame(1, b'{"type":"response.create","input":"a"}')
                storm.reached["reset within frames"] += 1
            else:
                data = b"".join(draw_connection(chance).pieces) or HANDSHAKE
                storm.reached["reset within the head"] += 1
            await stream.send_all(data[: chance.randint(0, len(data))])
        except trio.BrokenResourceError:
            storm.reached["the server was quicker"] += 1
        finally:
            reset(stream)
    if scope.cancelled_caught:
        raise ServerHurt(f"a handshake was not answered within {DEADLINE_S:g} s")
    return 1


async def press_frames(storm: Storm, chance: Random) -> int:
    """Send many good frames on a socket, then one that is not; counts those surely taken.

    The server has taken all frames up to its close frame or to the end of what we sent. Those of
    connections that are reset are sent all the same, and not counted.
    """
    script = draw_script(chance, FRAMES_MAX)
    data = HANDSHAKE + b"".join(script.frames)
    storm.reached["connections"] += 1
    if chance.random() < 0.1:
        data = data[: chance.randint(len(HANDSHAKE), len(data))]
        await converse(storm.address, (data,), Ending.RESET, deadline_s=DEADLINE_S)
        storm.reached["frames cut off by RST, not counted"] += len(script.frames)
        return 0
    left = await converse(storm.address, (data,), Ending.HALF, deadline_s=DEADLINE_S)
    if left.received.startswith(CAME_LATE):
        storm.reached["came late, not counted"] += 1
        return 0
    code = read_close_code(left.received) if left.received else None
    storm.reached[f"closed with {code}"] += 1
    if left.was_reset and code is None:
        storm.reached["frames of a reset by the server, not counted"] += len(script.frames)
        return 0
    assert left.was_reset or script.close_code in (None, code), (script.close_code, code)
    return len(script.frames)
