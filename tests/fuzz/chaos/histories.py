"""Streams as a client would have seen them, for the tests of what judges them."""

from typing import Any

from triolet.fuzz.chaos.fault_plan import Transport
from triolet.fuzz.chaos.history import StreamHistory

RESPONSE_ID = "resp_01" + 32 * "a"
TOKENS = [11, 12, 13, 14]
TEXT = "t0 t1 t2 t3 "


def delta(first: int, count: int = 1, **fields: Any) -> dict[str, Any]:
    """The delta of the tokens from index `first` on."""
    return {
        "type": "response.output_text.delta",
        "sequence_number": 8 * (first + count),
        "token_index": first,
        "token_ids": TOKENS[first : first + count],
        "delta": "".join(f"t{index} " for index in range(first, first + count)),
        **fields,
    }


def created() -> dict[str, Any]:
    """The first event."""
    return {
        "type": "response.created",
        "sequence_number": 0,
        "response": {"id": RESPONSE_ID, "status": "in_progress"},
    }


def end(kind: str, status: str, tokens: int = 4, **fields: Any) -> dict[str, Any]:
    """A terminal event."""
    response = {"status": status, "usage": {"output_tokens": tokens}, **fields}
    return {"type": kind, "sequence_number": 100, "response": response}


def finished() -> dict[str, Any]:
    """The end of a stream that has all its tokens."""
    return end("response.incomplete", "incomplete")


def failed(message: str, code: str = "engine_died") -> dict[str, Any]:
    """The end by an error."""
    return end("response.failed", "failed", error={"code": code, "message": message})


def history_of(*events: dict[str, Any]) -> StreamHistory:
    """A history that began at 10 s and saw these events, one each tenth of a second."""
    history = StreamHistory("a stream", 0, Transport.SSE, 10.0)
    for number, event in enumerate(events, 1):
        history.see(event, 10.0 + number / 10)
    return history


def invariants(history: StreamHistory) -> list[str]:
    """Which ones the wire alone has broken."""
    return [violation.invariant for violation in history.violations]
