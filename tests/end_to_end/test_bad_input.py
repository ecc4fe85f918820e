"""Mistakes of clients and users are answered with one sentence that names them, and harm nothing.

One server for all requests: afterwards it has the processes that it had before, and serves.
"""

import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from triolet.engine.model.bundled import bundled_model_folder

from .server import DEADLINE_S, Server, module_server
from .streams import check_serves

pytestmark = pytest.mark.slow

# Close at once with RST, and throw away what was not sent.
LINGER_0 = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Which model computes does not matter."""
    with module_server(tmp_path_factory.mktemp("null"), "--executor", "null") as server:
        pids = trio.run(server.pids)
        yield server
        # Spares may have come meanwhile.
        assert pids.items() <= trio.run(server.pids).items(), "bad input has cost a process"
        trio.run(check_serves, server)


RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
# Of the bundled model; the prompt is longer, so that nothing of an answer fits.
LONG = "fox " * 5000
# What only a whole server knows; `api/openai/test_bad_bodies.py` has every field.
BAD_REQUESTS: list[tuple[str, Any, int, str, str | None, str]] = [
    (RESPONSES, b'{"input": "\xff"}', 400, "invalid_json", None, "JSON"),
    (RESPONSES, {"input": "hi", "model": "gpt-9"}, 404, "model_not_found", "model", "gpt-9"),
    (RESPONSES, {"input": LONG}, 400, "context_length_exceeded", "input", "Shorten the prompt"),
    (CHAT, {"messages": MESSAGES, "max_tokens": 10**12}, 400, "", "max_tokens", "from 1 to"),
    *(
        (CHAT, {"messages": MESSAGES, name: value}, 400, "", name, "token ids from 0 to")
        for name, value in (
            ("logit_bias", {"4095999": 1}),
            ("allowed_token_ids", [4095999]),
            ("stop_token_ids", [4095999]),
        )
    ),
    ("/v1/completions", {"prompt": [4095999]}, 400, "", "prompt", "token ids from 0 to"),
    ("/v1/completions", {"prompt": "a " * 5_000_000}, 400, "", "prompt", "characters"),
    ("/v1/nothing", {}, 404, "", None, "/v1/nothing"),
]


@pytest.mark.parametrize(
    ("path", "sent", "status", "code", "param", "words"),
    BAD_REQUESTS,
    ids=[f"{path.rpartition('/')[2]}-{str(sent)[:40]}" for path, sent, *_ in BAD_REQUESTS],
)
async def test_a_bad_request_is_answered_with_what_is_wrong(
    server: Server, path: str, sent: Any, status: int, code: str, param: str | None, words: str
) -> None:
    content = sent if isinstance(sent, str | bytes) else json.dumps(sent)
    headers = {"content-type": "application/json"}
    async with server.client() as client:
        with trio.fail_after(DEADLINE_S):
            answer = await client.post(path, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert words in error["message"], error
    assert error["param"] == param
    assert error["code"] == code or not code


def handshake(url: str) -> bytes:
    """A good WebSocket handshake."""
    host = url.removeprefix("http://")
    return (
        f"GET /v1/responses HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


async def test_a_reset_at_every_byte_of_a_handshake_is_harmless(server: Server) -> None:
    head = handshake(server.url)
    host, _, port = server.url.removeprefix("http://").partition(":")
    frontend = (await server.pids())["frontend 0"]
    with trio.fail_after(DEADLINE_S):
        for length in range(len(head) + 1):
            with trio.socket.socket() as connection:
                await connection.connect((host, int(port)))
                await connection.send(head[:length])
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
    await check_serves(server)
    assert (await server.pids())["frontend 0"] == frontend
    assert (await server.metrics())["connections_failed_total"] == 0


# ---- the commands


async def run_command(*arguments: str) -> tuple[int, str]:
    """Exit code and what a person reads; never a traceback."""
    with trio.fail_after(DEADLINE_S):
        done = await trio.run_process(
            [sys.executable, "-m", "triolet", *arguments],
            stdin=subprocess.DEVNULL,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
            env={**os.environ, "COLUMNS": "200"},
        )
    said = (done.stdout + done.stderr).decode()
    assert "Traceback" not in said
    return done.returncode, said


async def test_a_busy_port(server: Server) -> None:
    port = server.url.rpartition(":")[2]
    code, said = await run_command("serve", "--executor", "null", "--port", port)
    assert code == 1
    (sentence,) = said.splitlines()
    assert port in sentence
    assert "in use" in sentence
    assert "--port" in sentence, "the way out"


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (("serve", "/nowhere/model"), 1, "/nowhere/model"),
        (("serve", "--workers", "2"), 2, "--workers must be 1: an executor computes"),
        (("tree",), 1, "start one with `triolet serve`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
async def test_a_bad_command(
    arguments: tuple[str, ...],
    exit_code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pathlib.Path,
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # where no server is running
    code, said = await run_command(*arguments)
    assert code == exit_code, said
    assert words in said


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", "cut off", "model.safetensors: is truncated"),
        ("chat_template.jinja", "{% if %}", "the chat template is wrong in line 1"),
    ],
)
async def test_a_broken_model_folder(
    tmp_path: pathlib.Path, name: str, content: str, words: str
) -> None:
    shutil.copytree(bundled_model_folder(), tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_text(content)
    code, said = await run_command("serve", str(tmp_path), "--port", "0")
    assert code == 1, said
    assert words in said
    assert "choose another model" in said, "the way out"
