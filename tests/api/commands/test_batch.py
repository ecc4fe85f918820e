"""A batch over a real server: whole, over breaks, and by a command that is killed."""

import json
import pathlib
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from typing import Any

import pytest
import trio

from triolet.api.commands import batch as batch_module
from triolet.api.commands.batch import Batch, BatchGivenUp, BatchServer, run_batch
from triolet.api.commands.batch_file import AnswerFile, BatchRequest
from triolet.api.commands.options import BatchOptions
from triolet.engine.errors import InvalidParameter
from triolet.fuzz.doubles.served import open_served
from triolet.fuzz.observers import wait_until
from triolet.runtime.events import ignore_event

DEADLINE_S = 120.0
REQUESTS = 12


def request(number: int, **body: Any) -> BatchRequest:
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("/v1/responses", {"input": f"hi {number}", "max_output_tokens": 4}),
        ("/v1/completions", {"prompt": f"hi {number}", "max_tokens": 4}),
    ]
    url, own = kinds[number % 2]
    line = {"custom_id": f"r{number}", "method": "POST", "url": url, "body": {**own, **body}}
    return BatchRequest(f"r{number}", url, {**own, **body}, json.dumps(line).encode())


def answers_of(path: pathlib.Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert not [name for name, count in Counter(x["custom_id"] for x in lines).items() if count > 1]
    return {line["custom_id"]: line["response"] for line in lines}


def has_lines(path: pathlib.Path, count: int) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") >= count


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


async def test_all_are_answered_once_and_refusals_are_answers(tmp_path: pathlib.Path) -> None:
    answers = AnswerFile.open(tmp_path / "out")
    with trio.fail_after(DEADLINE_S):
        async with open_served() as served:
            requests = [*map(request, range(9)), request(9, temperature=-1)]
            batch = Batch(BatchServer(*served.address), answers)
            await batch.run(iter(requests), 3)
    answers.close()
    found = answers_of(tmp_path / "out")
    assert batch.summary() == "10 answered, 1 of them refused"
    assert sorted(found) == sorted(each.custom_id for each in requests)
    assert found["r0"]["body"]["output"][0]["content"][0]["text"]
    assert found["r1"]["body"]["choices"][0]["text"]
    assert found["r9"]["status_code"] == 400
    assert "temperature" in found["r9"]["body"]["error"]["message"]
    assert found["r0"]["request_id"].startswith("req_")


async def test_a_server_that_never_answers_is_given_up(
    tmp_path: pathlib.Path, autojump_clock: trio.testing.MockClock
) -> None:
    answers = AnswerFile.open(tmp_path / "out")
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = listener.socket.getsockname()
    await listener.aclose()
    with pytest.raises(BatchGivenUp, match=r"r0 has no answer after 120 tries.*Start the batch"):
        await Batch(BatchServer(*address), answers).run(iter([request(0)]), 1)
    answers.close()
    assert trio.current_time() > batch_module.AGAIN_MAX_S


async def test_a_server_that_is_not_there_or_not_ours_ends_it_at_once(
    tmp_path: pathlib.Path,
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(request(0).line)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
    await listener.aclose()
    options = BatchOptions(url=url)
    with pytest.raises(BatchGivenUp, match=f"{url} cannot be reached"):
        await run_batch((source, target), None, options, runtime={}, on_event=ignore_event)
    assert target.read_bytes() == b""
    refusal = b'{"error": {"message": "no such key"}}'
    head = b"HTTP/1.1 401 no\r\ncontent-length: %d\r\n\r\n" % len(refusal)

    async def refuse(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(head + refusal)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, refuse, 0, host="127.0.0.1"))
        options = BatchOptions(url=f"http://127.0.0.1:{listener.socket.getsockname()[1]}")
        with pytest.raises(BatchGivenUp, match="the server refuses us: no such key"):
            await run_batch((source, target), None, options, runtime={}, on_event=ignore_event)
        nursery.cancel_scope.cancel("it was asked")
    assert target.read_bytes() == b""


def test_a_url_is_that_of_a_server() -> None:
    assert BatchServer.of("http://h:1/", "k") == BatchServer("h", 1, "k")
    for wrong in ("https://h", "h:1", "http://h/v1", "http://h:x", "http://["):
        with pytest.raises(InvalidParameter, match="url must be like"):
            BatchServer.of(wrong, "")


@pytest.mark.slow
@pytest.mark.end_to_end
async def test_a_command_that_is_killed_goes_on_with_what_has_no_answer(
    tmp_path: pathlib.Path,
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests = [request(number) for number in range(REQUESTS)]
    source.write_bytes(b"".join(each.line + b"\n" for each in requests))
    words = ["batch", str(source), str(target), "--executor", "null", "--null-step", "0.05"]
    command = [sys.executable, "-m", "triolet", *words, "--in-flight", "4"]
    with start(command) as killed:
        answered = partial(has_lines, target, 3)
        await wait_until(answered, "three answers", seconds=DEADLINE_S)
        assert killed.poll() is None
        killed.send_signal(signal.SIGKILL)
    before = target.read_bytes()
    assert 3 <= before.count(b"\n") < REQUESTS
    with target.open("ab") as file:
        file.write(b'{"id":"batch_req_r11","custom_id":"r1')  # of the same death
    ended = await trio.to_thread.run_sync(run, command)
    assert ended.returncode == 0, ended.stderr
    count = before.count(b"\n")
    assert ended.stdout == (
        f"{REQUESTS - count} answered; {count} of {REQUESTS} were there before\n"
    )
    assert target.read_bytes().startswith(before)
    assert len(answers_of(target)) == REQUESTS
    again = await trio.to_thread.run_sync(run, command)
    assert again.stdout == f"all {REQUESTS} have an answer in {target}\n"
