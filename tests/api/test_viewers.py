"""Viewers of one frontend: bounded, one order to the root for all of them."""

import pytest
import trio
import trio.testing

from triolet.api.errors import ApiError
from triolet.api.viewers import VIEWERS_MAX, Viewers
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.control.calls import News
from triolet.runtime.messages import ServerNews, WatchServer


async def test_each_viewer_begins_with_a_snapshot_and_one_order_is_for_all() -> None:
    orders: list[int] = []

    async def send(order: WatchServer) -> None:
        await trio.lowlevel.checkpoint()
        orders.append(order.number)

    viewers = Viewers(send)
    async with open_service(viewers.run, name="viewers"), trio.open_nursery() as nursery:
        with viewers.view() as one, viewers.view() as two:
            nursery.start_soon(one.take)
            nursery.start_soon(two.take)
            await trio.testing.wait_all_tasks_blocked()
            assert orders == [2]
            viewers.handle_news(ServerNews(["all", "more"], is_whole=True))
            await trio.testing.wait_all_tasks_blocked()
            viewers.handle_news(ServerNews(["new"], is_whole=False))
            assert await two.take() == News(["new"], is_whole=False)
        await trio.testing.wait_all_tasks_blocked()
        assert orders == [2, 0]


def test_there_are_so_many_and_none_without_a_root() -> None:
    with pytest.raises(ApiError) as refused, Viewers().view():
        pass
    assert refused.value.code == "root_unreachable"

    async def send(order: WatchServer) -> None:
        raise AssertionError

    viewers = Viewers(send)
    views = [viewers.view() for _ in range(VIEWERS_MAX)]
    for view in views:
        view.__enter__()
    with pytest.raises(ApiError) as refused, viewers.view():
        pass
    assert (refused.value.status, refused.value.code) == (503, "too_many_viewers")
    views[0].__exit__(None, None, None)
    with viewers.view():
        pass
