"""Short form of `triolet chaos --hosts 3`: hosts join a head, are killed, cut off, and outlive it.

Six cases: hosts join; an engine of one is killed; a host is switched off; its link is cut for 2 s,
and for 6 s; the head is killed.
"""

import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import trio

from triolet.fuzz.chaos.command import show
from triolet.fuzz.chaos.network.host_campaign import run_hosts
from triolet.fuzz.chaos.network.host_lab import API_KEY, HEAD, PORT, HostLab, open_host_lab
from triolet.fuzz.chaos.network.host_plan import HostFault, HostFaultKind
from triolet.fuzz.chaos.network.namespaces import NoNamespaces
from triolet.fuzz.chaos.options import ChaosOptions

from ..end_to_end.server import CLIENTS, DEADLINE_S

pytestmark = pytest.mark.slow

OPTIONS = ChaosOptions(hosts=3, patience=10.0)
KINDS = (
    HostFaultKind.KILL_ENGINE,
    HostFaultKind.HOST_OFF,
    HostFaultKind.SHORT_CUT,
    HostFaultKind.CUT,
)


async def test_streams_outlast_what_happens_to_hosts_and_their_links() -> None:
    plan = [
        HostFault(number=number, kind=kind, host=2 + number % 2, token=20)
        for number, kind in enumerate(KINDS)
    ]
    with trio.fail_after(5 * DEADLINE_S):
        try:
            report = await run_hosts(OPTIONS, plan)
        except NoNamespaces as reason:
            pytest.skip(str(reason))
    show(report)
    assert report.all_violations() == []
    assert report.is_green()


def sdk_streams(lab: HostLab) -> subprocess.Popen[str]:
    """The unmodified SDK on the clients' host: eight streams."""
    url = f"http://{lab.network.address(HEAD)}:{PORT}"
    words = [sys.executable, str(CLIENTS / "streams.py"), url, API_KEY, "8", "250"]
    command = [*lab.network.words(lab.clients), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def begun(client: subprocess.Popen[str]) -> None:
    assert client.stdout is not None
    assert await trio.to_thread.run_sync(client.stdout.readline) == "begun\n"


async def answers(client: subprocess.Popen[str]) -> list[dict[str, Any]]:
    text, _ = await trio.to_thread.run_sync(client.communicate)
    found: list[dict[str, Any]] = json.loads(text)
    return found


async def test_the_unmodified_sdk_reads_on_when_a_host_is_switched_off(
    tmp_path: pathlib.Path,
) -> None:
    with trio.fail_after(3 * DEADLINE_S):
        try:
            async with open_host_lab(tmp_path) as lab:
                await lab.start()
                undisturbed = sdk_streams(lab)
                await begun(undisturbed)
                wanted = await answers(undisturbed)
                client = sdk_streams(lab)
                await begun(client)
                await lab.host_off(2)
                found = await answers(client)
        except NoNamespaces as reason:
            pytest.skip(str(reason))
    assert [each["text"] for each in found] == [each["text"] for each in wanted]
    assert {each["reason"] for each in found} == {"length"}
