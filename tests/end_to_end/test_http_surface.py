"""The routes around generation on a real server: tokenizer, completions, load, the admin tree."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import trio

from .server import DEADLINE_S, Server, module_server

pytestmark = pytest.mark.slow

ADMIN = {"authorization": "Bearer admin"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The null executor, with a key for admins alone."""
    folder = tmp_path_factory.mktemp("surface")
    # Spares would come into the tree a second after the start.
    spares = ("--spare-engines", "0", "--spare-frontends", "0")
    options = ("--executor", "null", "--admin-key", "admin", "--vllm-metrics", *spares)
    with module_server(folder, *options) as server:
        yield server


async def ask(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    with trio.fail_after(DEADLINE_S):
        answer = await client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_texts_become_tokens_and_texts_again(server: Server) -> None:
    text = "The fox lit a lantern.  Ω ünïcode"
    async with server.client() as client:
        found = await ask(client, "POST", "/tokenize", {"prompt": text, "return_token_strs": True})
        assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
        whole = await ask(client, "POST", "/detokenize", {"tokens": found["tokens"]})
        assert whole["prompt"].endswith(text)
        info = await ask(client, "GET", "/tokenizer_info")
        assert info["eos_token"]
        assert "messages" in info["chat_template"]
        conversation = {"messages": [{"role": "user", "content": text}]}
        rendered = await ask(client, "POST", "/tokenize", conversation)
        assert rendered["count"] > found["count"]


async def test_completions_of_text_and_of_its_ids_are_the_same(server: Server) -> None:
    text = "Once upon a time"
    async with server.client() as client:
        ids = (await ask(client, "POST", "/tokenize", {"prompt": text}))["tokens"]
        request = {"max_tokens": 5, "seed": 5, "return_token_ids": True, "echo": True}
        one = await ask(client, "POST", "/v1/completions", {"prompt": text, **request})
        batch = await ask(client, "POST", "/v1/completions", {"prompt": [text, ids], **request})
        assert one["choices"][0]["prompt_token_ids"] == ids
        assert one["choices"][0]["text"].startswith(text)
        for choice in batch["choices"]:
            assert choice["token_ids"] == one["choices"][0]["token_ids"]
        assert batch["usage"]["total_tokens"] == 2 * (len(ids) + 5)


async def test_the_admin_sees_all_processes(server: Server) -> None:
    async with server.client() as client:
        with trio.fail_after(DEADLINE_S):
            refused = await client.get("/admin/tree")
            answer = await client.get("/admin/tree", headers=ADMIN)
    assert refused.status_code == 401
    tree = answer.json()
    assert tree["name"] == "root"
    names = {process["name"] for process in tree["processes"]}
    # Spares come a second after all is ready, which may be before a slow client asks.
    apart = ("spare ", "fork server ")
    serving = {name for name in names if not name.startswith(apart)}
    assert serving - {"forms 0"} == {"frontend 0", "engine 0"}, "forms may come a moment later"


async def test_the_document_and_the_load(server: Server) -> None:
    async with server.client() as client:
        document = await ask(client, "GET", "/openapi.json")
        assert "/admin/tree" in document["paths"]
        assert await ask(client, "GET", "/load") == {"server_load": 0}
