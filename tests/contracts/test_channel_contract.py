"""The channel contract on the real channel and on the fake."""

import pytest

from triolet.tests.contracts.channel import (
    CHECKS,
    MakeMesh,
    curve_mesh,
    memory_mesh,
    one_port_mesh,
    remote_mesh,
    tcp_mesh,
    zmq_mesh,
)

MESHES = (memory_mesh, zmq_mesh, tcp_mesh, curve_mesh, one_port_mesh, remote_mesh)


@pytest.mark.parametrize(
    "make_mesh", [memory_mesh, zmq_mesh, tcp_mesh, curve_mesh, one_port_mesh, remote_mesh]
)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_channel_contract(check: object, make_mesh: MakeMesh) -> None:
    assert callable(check)
    await check(make_mesh)
