"""The placer's process before it has Ray: a cluster that is not there is found out at once."""

import trio

from triolet.runtime.launchers.ray_process import is_there


async def test_a_cluster_that_does_not_answer_is_none() -> None:
    async def refuse_nobody(stream: trio.SocketStream) -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        async with listener:
            nursery.start_soon(trio.serve_listeners, refuse_nobody, [listener])
            assert await is_there(address)
            nursery.cancel_scope.cancel("it ends")
    assert not await is_there(address)


async def test_what_is_no_address_is_for_ray_to_find() -> None:
    assert await is_there("auto")
    assert await is_there("a.b.c")
