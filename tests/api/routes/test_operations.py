"""Models, health, version, metrics, the docs page (whole in itself)."""

import re
import time

import msgspec
import pytest

from triolet.api.routes.operations import PAGE, TOKENS_AT_ONCE, _tokens_as_json
from triolet.fuzz.doubles.journal_memory import NotedMemory
from triolet.runtime.journal.journal import Journal
from triolet.runtime.journal.reader import read_journal
from triolet.runtime.journal.writer import JournalWriter
from triolet.runtime.messages import Doubted

from ..fakes import VOCABULARY, FakeGenerator, make_application, open_client


async def test_models() -> None:
    generator = FakeGenerator(model_name="org/toy")
    names = ("org/toy", "gpt-4o")
    async with open_client(make_application(generator, served_model_names=names)) as client:
        models = (await client.request("GET", "/v1/models")).json
        assert models["object"] == "list"
        assert [model["id"] for model in models["data"]] == ["org/toy", "gpt-4o"]
        assert (models["data"][0]["max_model_len"], models["data"][0]["created"]) == (128, 5)
        for model in models["data"]:
            assert (await client.request("GET", f"/v1/models/{model['id']}")).json == model
            body = {"messages": [{"role": "user", "content": "a"}], "model": model["id"]}
            answer = (await client.request("POST", "/v1/chat/completions", body)).json
            assert answer["model"] == "org/toy"
        missing = await client.request("GET", "/v1/models/other")
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")
        assert "'org/toy', 'gpt-4o'" in missing.error["message"]


async def test_a_starting_server_lives_and_is_not_ready() -> None:
    generator = FakeGenerator(is_ready=False)
    async with open_client(make_application(generator)) as client:
        assert (await client.request("GET", "/live")).json == {"live": True}
        ready = await client.request("GET", "/ready")
        assert ready.headers["x-content-type-options"] == "nosniff"
        assert (ready.status, ready.json["reasons"]) == (503, ["engine 0 is starting"])
        health = await client.request("GET", "/health")
        assert health.status == 503
        assert health.json["engines"][0]["state"] == "starting"
        generator.is_ready = True
        assert (await client.request("GET", "/ready")).status == 200
        assert (await client.request("GET", "/health")).status == 200


async def test_strangers_are_shown_states_and_no_sentences() -> None:
    application = make_application(FakeGenerator(is_ready=False), api_keys=("key",))
    application.failed_frontends = {1: "/home/me/model: it died too often"}
    async with open_client(application) as client:
        wrong = {"authorization": "Bearer other"}
        for headers in ({}, wrong):
            assert (await client.request("GET", "/ready", headers=headers)).json == {"ready": False}
            health = await client.request("GET", "/health", headers=headers)
            assert health.status == 503
            assert health.json == {
                "live": True,
                "ready": False,
                "engines": [{"rank": 0, "epoch": 1, "state": "starting", "restarts": 2}],
                "failed_frontends": [{"rank": 1}],
            }
        right = {"authorization": "Bearer key"}
        health = await client.request("GET", "/health", headers=right)
        assert health.json["reasons"] == ["engine 0 is starting"]
        assert "/home/me/model" in health.json["failed_frontends"][0]["reason"]
        ready = await client.request("GET", "/ready", headers=right)
        assert ready.json["reasons"] == ["engine 0 is starting"]


async def test_version_and_metrics() -> None:
    async with open_client(make_application()) as client:
        assert "version" in (await client.request("GET", "/version")).json
        metrics = await client.request("GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert b"triolet_connections_active 1.0" in metrics.body


async def test_the_load_is_what_is_in_flight() -> None:
    async with open_client(make_application()) as client:
        assert (await client.request("GET", "/load")).json == {"server_load": 0}


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


async def test_frontends_that_are_given_up_are_told_with_the_reason() -> None:
    application = make_application()
    async with open_client(application) as client:
        assert (await client.request("GET", "/health")).json["failed_frontends"] == []
        application.failed_frontends = {1: "it died too often"}
        health = await client.request("GET", "/health")
    assert health.status == 200  # this one serves
    reason = "frontend 1 is failed: it died too often"
    assert health.json["failed_frontends"] == [{"rank": 1, "reason": reason}]


async def test_what_frontends_refuse_is_told_by_digest_and_for_how_long() -> None:
    application = make_application(api_keys=("key",))
    now_s = time.monotonic()
    refused = {b"a" * 16: now_s + 600.0, b"b" * 16: now_s - 1.0}  # the second is over
    application.hands.handle_doubted(Doubted([b"c" * 16], refused))
    async with open_client(application) as client:
        key = {"authorization": "Bearer key"}
        told = (await client.request("GET", "/health", headers=key)).json["refused_by_frontends"]
        stranger = (await client.request("GET", "/health")).json
    [one] = told
    assert one["content"] == (b"a" * 16).hex()
    assert 500.0 < one["for_s"] <= 600.0
    assert "refused_by_frontends" not in stranger


async def test_a_journal_that_failed_is_reported_and_work_is_taken() -> None:
    application = make_application()
    async with open_client(application) as client:
        assert (await client.request("GET", "/health")).json["degraded"] == []
        memory = NotedMemory.fresh(2**20)
        contents = read_journal(memory)
        application.journal = Journal.resume(JournalWriter.resume(memory, contents, 1), contents)
        application.journal.give_up(OSError(28, "No space left on device"))
        health = await client.request("GET", "/health")
        application.journal, application.journal_fault = None, "it is no journal"
        other = await client.request("GET", "/health")
    said = "streams end with their frontend, as its journal failed: "
    assert (health.status, health.json["ready"]) == (200, True)
    assert health.json["degraded"] == [f"{said}No space left on device"]
    assert other.json["degraded"] == [f"{said}it is no journal"]


@pytest.mark.parametrize("count", [0, 1, TOKENS_AT_ONCE, 2 * TOKENS_AT_ONCE + 1])
async def test_many_tokens_are_spelled_some_at_a_time(count: int) -> None:
    tokens = list(range(count))
    assert msgspec.json.decode(await _tokens_as_json(tokens)) == list(range(count))
    assert tokens == []  # so that none is freed at once


async def test_tokenize_and_back() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request(
            "POST", "/tokenize", {"prompt": "ab", "return_token_strs": True}
        )
        assert answer.json == {
            "count": 3,
            "max_model_len": 128,
            "tokens": [1, 97, 98],
            "token_strs": ["\x01", "a", "b"],
        }
        chat = {"messages": [{"role": "user", "content": "c"}]}
        answer = await client.request("POST", "/tokenize", chat)
        assert (answer.json["tokens"], answer.json["token_strs"]) == ([99], None)
        answer = await client.request("POST", "/detokenize", {"tokens": [97, 98]})
        assert answer.json == {"prompt": "ab"}
        answer = await client.request("GET", "/tokenizer_info")
        assert answer.json["eos_token"] == "</s>"


async def test_an_id_that_the_model_lacks_names_its_field() -> None:
    async with open_client(make_application()) as client:
        answer = await client.request("POST", "/detokenize", {"tokens": [VOCABULARY + 1]})
    assert (answer.status, answer.error["param"]) == (400, "tokens")
