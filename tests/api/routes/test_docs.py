"""The page of routes: whole in itself, and kept so by its own policy."""

import re

from triolet.api.routes.docs import PAGE

from ..fakes import make_application, open_client


def test_the_page_loads_nothing_from_elsewhere() -> None:
    text = PAGE.decode()
    assert not re.search(r"https?://|//[a-z]+\.[a-z]|@import|<link|<img|src=", text)
    assert "innerHTML" not in text


async def test_it_is_open_and_guarded_by_a_policy() -> None:
    async with open_client(make_application(api_keys=("k",))) as client:
        answer = await client.request("GET", "/docs")
    assert (answer.status, answer.body) == (200, PAGE)
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
