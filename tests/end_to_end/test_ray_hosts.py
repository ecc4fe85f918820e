"""Hosts that a real Ray cluster places, on machines of a virtual network: what dies is replaced.

One cluster for all of it, as that takes half a minute to begin. `make ray` has the environment, as
Ray is no package of the tests' own. What was measured is printed.
"""

import os
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio

from triolet.fuzz.chaos.network.host_lab import (
    API_KEY,
    HEAD,
    HostLab,
    differences,
    excess_gaps_s,
    is_up,
    make_scripts,
    open_host_lab,
    wait_tokens,
)
from triolet.fuzz.chaos.network.host_lab import PORT as SERVE_PORT
from triolet.fuzz.chaos.network.namespaces import NoNamespaces
from triolet.fuzz.chaos.served_run import ServedRun
from triolet.fuzz.observers import PROC
from triolet.fuzz.server_process import ServerProcess

from .server import DEADLINE_S, wait_until

BIN = os.environ.get("TRIOLET_TEST_RAY", "")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not BIN, reason="Ray is not here: run `make ray`"),
]

PORT = 6379
NODE = (
    *("--object-store-memory", "80000000", "--disable-usage-stats"),
    *("--include-log-monitor", "False", "--block"),
)
SCRIPTS = make_scripts(6, 200)
# One is the head's own: Ray may put both hosts on one node, whose end is theirs.
ENGINES = 3
# Ours, or an actor of ours.
TITLES = ("triolet: ", "ray::HostActor")
# Bounds, from the table of failures in the design, on two busy cores.
GONE_S = 10.0


def say(text: str) -> None:
    """Into the report of the test, or onto the terminal with `-s`."""
    sys.stdout.write(text + "\n")


def titles(lab: HostLab, host: int) -> dict[int, str]:
    """{pid: title} of the processes of a host."""
    found = {}
    for pid in lab.network.pids(host):
        try:
            text = (PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        found[pid] = text.replace(b"\0", b" ").decode().strip()
    return found


def pids_of(lab: HostLab, host: int, word: str) -> list[int]:
    return [pid for pid, title in titles(lab, host).items() if word in title]


@contextmanager
def short_folder() -> Iterator[pathlib.Path]:
    """Ray has sockets there, whose paths may not be long."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def open_cluster(lab: HostLab, folder: pathlib.Path) -> AsyncIterator[str]:
    """A Ray node on the head's host, which has no room, and on all others; its address."""
    address, nodes = f"{lab.network.address(HEAD)}:{PORT}", list[ServerProcess]()
    try:
        for host in (HEAD, *lab.others):
            words = [*lab.network.words(host), f"{BIN}/ray", "start", *NODE]
            words += ["--node-ip-address", lab.network.address(host)]
            if host == HEAD:
                words += ["--head", "--port", str(PORT), "--num-cpus", "0"]
                words += ["--temp-dir", str(folder / "ray"), "--include-dashboard", "false"]
            else:
                words += ["--address", address, "--num-cpus", "2"]
            (folder / str(host)).mkdir()
            node = ServerProcess(words, folder / str(host))
            node.spawn()
            nodes.append(node)
            # One after the other: two that begin at the same moment disturb each other.
            await wait_until(lambda: "Ray runtime started" in nodes[-1].log(), "a node is there")
        yield address
    finally:
        for host in (HEAD, *lab.others):
            lab.network.kill(host)
        for node in nodes:
            node.popen.wait()


async def check_streams_go_on(lab: HostLab, what: str, host: int, word: str) -> None:
    """Kill what has this word in its title on a host: streams are the same, capacity is back."""
    async with lab.streams(SCRIPTS) as calm:
        pass
    before, began_s, noticed_s = await lab.epochs(), 0.0, 0.0

    async def is_noticed() -> bool:
        return len(list(filter(is_up, await lab.engines()))) < ENGINES

    async with lab.streams(SCRIPTS) as histories:
        await wait_tokens(histories, 20)
        pids = pids_of(lab, host, word)
        assert pids, f"{word} is not among {titles(lab, host)}"
        began_s = trio.current_time()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        noticed_s = await wait_until(is_noticed, "its engine is not used any more", look_s=0.01)
    gaps = [round(each, 3) for each in excess_gaps_s(histories, calm)]
    assert differences(histories, calm) == []

    async def is_replaced() -> bool:
        engines = await lab.engines()
        now = {engine["rank"]: engine["epoch"] for engine in engines}
        return len(list(filter(is_up, engines))) == len(now) == ENGINES and now != before

    await wait_until(is_replaced, "the capacity is back")
    back_s = trio.current_time() - began_s
    say(f"{what}: noticed after {noticed_s:.2f} s, gaps beyond undisturbed {gaps}")
    say(f"{what}: all engines again after {back_s:.1f} s")


def node_of(lab: HostLab, word: str) -> int:
    """A host with such a process."""
    return next(host for host in lab.others if pids_of(lab, host, word))


async def check_all(lab: HostLab, address: str) -> None:
    own = lab.network.address(HEAD)
    place = ("--launcher", "ray", "--ray-address", address, "--hosts", "2", "--engines", "1")
    began_s = trio.current_time()
    folder = lab.folder / "head"
    folder.mkdir()
    words = [*lab.network.words(HEAD), f"{BIN}/python", "-m", "triolet", "serve", "--threads", "1"]
    words += ["--host", own, "--api-key", API_KEY, "--advertise", own, "--spare-engines", "0"]
    lab.head = ServedRun([*words, *place, "--frontends", "1"], folder)
    await lab.head.start(SERVE_PORT)
    await lab.wait_ready(ENGINES)
    say(f"placed: all engines after {trio.current_time() - began_s:.1f} s")
    assert [len(pids_of(lab, host, "ray::HostActor")) for host in lab.others] == [1, 1], "spread"

    await check_streams_go_on(lab, "engine", node_of(lab, "triolet: engine"), "triolet: engine")
    await check_streams_go_on(lab, "actor", node_of(lab, "ray::HostActor"), "ray::HostActor")

    before = await lab.epochs()
    (placer,) = pids_of(lab, HEAD, "triolet: placer")
    async with lab.streams(SCRIPTS) as calm:
        pass
    async with lab.streams(SCRIPTS) as histories:
        await wait_tokens(histories, 20)
        os.kill(placer, signal.SIGKILL)
    assert differences(histories, calm) == []
    say(f"placer: gaps beyond undisturbed {excess_gaps_s(histories, calm)}")
    assert await lab.epochs() == before, "its death is nobody's else"
    # The next one sees to what dies after it has begun.
    await check_streams_go_on(lab, "raylet", node_of(lab, "ray::HostActor"), "/raylet/raylet")
    assert placer not in pids_of(lab, HEAD, "triolet: placer")

    os.kill(lab.head.pid, signal.SIGKILL)
    killed_s = trio.current_time()

    def are_gone() -> bool:
        found = [title for host in lab.network.hosts for title in titles(lab, host).values()]
        return not any(title.startswith(TITLES) for title in found)

    await wait_until(are_gone, "no process of the server is left")
    gone_s = trio.current_time() - killed_s
    say(f"root: nothing is left of it after {gone_s:.1f} s")
    assert gone_s <= GONE_S


async def test_what_ray_places_outlives_what_dies(tmp_path: pathlib.Path) -> None:
    with trio.fail_after(6 * DEADLINE_S), short_folder() as folder:
        try:
            async with (
                open_host_lab(tmp_path) as lab,
                open_cluster(lab, folder) as address,
            ):
                try:
                    await check_all(lab, address)
                finally:
                    say(lab.head.log())
        except NoNamespaces as reason:
            pytest.skip(str(reason))
