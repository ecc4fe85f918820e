"""Hosts of a test, where this machine lets us make some."""

from collections.abc import AsyncIterator

import pytest
import trio

from triolet.fuzz.chaos.network.namespaces import NoNamespaces
from triolet.fuzz.chaos.network.virtual_network import VirtualNetwork, open_virtual_network

# Nothing here takes as long, even on a busy machine.
DEADLINE_S = 60.0
HOSTS = 3


@pytest.fixture(autouse=True, scope="package")
def _hosts_can_be_made() -> None:
    try:
        trio.run(_make_one)
    except NoNamespaces as reason:
        pytest.skip(str(reason))


async def _make_one() -> None:
    async with open_virtual_network(1):
        pass


@pytest.fixture
async def network() -> AsyncIterator[VirtualNetwork]:
    with trio.fail_after(DEADLINE_S):
        async with open_virtual_network(HOSTS) as found:
            yield found
