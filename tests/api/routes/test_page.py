"""The page's files: for browsers, without a key, under a policy that lets nothing in."""

import pytest

from triolet.api.routes.page import FILES, INDEX, RUNNING, TYPES, StaticFile

from ..fakes import make_application, open_client

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


async def test_a_browser_gets_the_page_without_a_key() -> None:
    async with open_client(make_application(api_keys=("k",))) as client:
        answer = await client.request("GET", "/", headers=BROWSER)
    assert (answer.status, answer.body) == (200, FILES[INDEX].content)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


async def test_other_clients_get_a_line_that_says_where_to_look() -> None:
    async with open_client(make_application(api_keys=("k",))) as client:
        for headers in ({}, {"accept": "*/*"}, {"accept": "application/json"}):
            answer = await client.request("GET", "/", headers=headers)
            assert (answer.status, answer.body) == (200, RUNNING)
            assert answer.headers["content-type"].startswith("text/plain")


async def test_each_file_is_there_and_nothing_else() -> None:
    async with open_client(make_application(api_keys=("k",))) as client:
        for name, file in FILES.items():
            answer = await client.request("GET", f"/page/{name}")
            assert (answer.status, answer.body) == (200, file.content)
            assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
        for name in ("../routes/docs.html", "%2e%2e%2fapplication.py", "nothing.js"):
            assert (await client.request("GET", f"/page/{name}")).status in (401, 404)


async def test_nothing_from_elsewhere_is_let_in() -> None:
    async with open_client(make_application()) as client:
        headers = (await client.request("GET", "/", headers=BROWSER)).headers
    policy = dict(part.split(None, 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


async def test_a_copy_that_is_ours_is_not_sent_again() -> None:
    async with open_client(make_application()) as client:
        tag = (await client.request("GET", "/", headers=BROWSER)).headers["etag"]
        same = await client.request("GET", "/", headers={**BROWSER, "if-none-match": tag})
        other = await client.request("GET", "/", headers={**BROWSER, "if-none-match": '"x"'})
        assert (same.status, same.body) == (304, b"")
        assert same.headers["etag"] == tag
        assert "content-length" not in same.headers
        assert other.status == 200
        # The connection is of use after an answer without a body.
        assert (await client.request("GET", "/live")).status == 200


def test_a_kind_without_a_media_type_is_refused() -> None:
    with pytest.raises(KeyError):
        StaticFile.of("program.exe", b"")
