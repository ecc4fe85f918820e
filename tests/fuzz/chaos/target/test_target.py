"""Kills of a server of others: lines and ends of its streams, its processes, and what is lost."""

import pathlib
import socket
import sys

import pytest
import trio

from triolet.fuzz.chaos.fault_plan import Transport
from triolet.fuzz.chaos.history import Ending, StreamHistory
from triolet.fuzz.chaos.options import ChaosOptions
from triolet.fuzz.chaos.target.target_campaign import is_different, run_target

from ..test_faults import DEADLINE_S

# A server with a child, which outlives it; it has chat alone, and no field but OpenAI's.
SERVER = """
import http.server, json, subprocess, sys, time
CHILD = subprocess.Popen(["sleep", "1000"])
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.answer({"data": [{"id": "tiny"}]})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/v1/chat/completions":
            self.send_error(404)
        elif "ignore_eos" in body:
            self.send_error(422)
        elif not body["stream"]:
            self.answer({})
        else:
            self.send_response(200)
            self.end_headers()
            for number in range(body["max_tokens"]):
                end = "length" if number == body["max_tokens"] - 1 else None
                choice = {"delta": {"content": f"{number} "}, "finish_reason": end}
                self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\\n\\n".encode())
                time.sleep(0.005)
            self.wfile.write(b"data: [DONE]\\n\\n")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert isinstance(port, int)
        return port


@pytest.mark.slow
async def test_what_a_server_without_a_successor_loses(tmp_path: pathlib.Path) -> None:
    script, port = tmp_path / "server.py", free_port()
    script.write_text(SERVER)
    options = ChaosOptions(
        target=f"{sys.executable} {script} {port}",
        target_url=f"http://127.0.0.1:{port}/v1",
        # Its first kill is of the child, its second of the command, and soon.
        seed=21,
        faults=2,
    )
    with trio.fail_after(4 * DEADLINE_S):
        report = await run_target(options)
    kinds = {row["kind"]: row for row in report.rows()}
    assert set(kinds) == {"kill command", "kill sleep"}
    assert sum(row["proven"] for row in kinds.values()) == 2
    assert kinds["kill command"]["streams"]["lost"] > 0
    assert "streams" not in kinds["kill sleep"]["streams"], "its child served no client"
    assert report.endings[Ending.FINISHED] > 0
    assert "different" not in report.touched["kill command"]
    started = 1 + kinds["kill command"]["done"]
    assert any(note.startswith(f"started {started} times") for note in report.notes)
    assert report.is_green()
    with pytest.raises(OSError, match="failed"):
        await trio.open_tcp_stream("127.0.0.1", port)


@pytest.mark.parametrize(
    ("text", "ending", "different"),
    [
        ("one two", Ending.FINISHED, False),
        ("one", Ending.FINISHED, True),
        ("one", Ending.LOST, False),
        ("", Ending.REFUSED, False),
        ("one tree", Ending.LOST, True),
    ],
)
def test_a_text_is_that_of_the_undisturbed_answer(
    text: str, ending: Ending, different: bool
) -> None:
    seen = StreamHistory("a stream", 0, Transport.SSE, 0.0)
    seen.take_text(text, 0.1)
    seen.end(ending, 0.2)
    assert is_different(seen, "one two") is different
    assert not is_different(seen, None)
