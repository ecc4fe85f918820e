"""The unmodified SDK: its socket is lost after some tokens; `retrieve` brings the rest, exactly.

python resume.py URL TOKENS; prints the two halves of the cut response and the same one uncut, as
JSON.
"""

import json
import os
import socket
import sys
from typing import Any

from openai import OpenAI

MODEL = "triolet-bundled"
REQUEST: Any = {
    "type": "response.create",
    "model": MODEL,
    "input": "Tell me a story about a fox.",
    "max_output_tokens": 100,
    "temperature": 0,
    "runtime": {"ignore_eos": True, "token_ids": True},
}


def token_ids(event: Any) -> list[int]:
    return list((event.model_extra or {}).get("token_ids", []))


def cut_after(client: OpenAI, tokens: int) -> dict[str, Any]:
    """Begin on a socket, lose it without a word, and read the rest by HTTP."""
    create: Any = {**REQUEST, "runtime": {**REQUEST["runtime"], "keep_s": 30}}
    connection = client.responses.connect().enter()
    connection.send(create)
    seen: list[Any] = []
    response_id, number = "", -1
    while sum(len(token_ids(event)) for event in seen) < tokens:
        event: Any = connection.recv()
        number = event.sequence_number
        if event.type == "response.created":
            response_id = event.response.id
        elif event.type == "response.output_text.delta":
            seen.append(event)
    # As a cable that is pulled: the server is told by a reset, or by nothing at all.
    raw: socket.socket = connection._connection.socket
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))
    os.close(raw.detach())
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=number))
    numbers = [event.sequence_number for event in rest]
    whole = client.responses.retrieve(response_id)
    return {
        "seen": [i for event in seen for i in token_ids(event)],
        "rest": [i for event in rest for i in token_ids(event)],
        "text": "".join(e.delta for e in [*seen, *rest] if e.type == "response.output_text.delta"),
        "whole": whole.output_text,
        "last": rest[-1].type,
        "numbers_grow": numbers == sorted(set(numbers)) and numbers[0] > number,
    }


def uncut(client: OpenAI) -> list[int]:
    with client.responses.connect() as connection:
        connection.send(REQUEST)
        ids: list[int] = []
        for event in connection:
            ids += token_ids(event)
            if event.type == "response.incomplete":
                return ids
    raise AssertionError("no end")


def main() -> None:
    client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
    seen = cut_after(client, int(sys.argv[2]))
    seen["uncut"] = uncut(client)
    print(json.dumps(seen))  # noqa: T201


if __name__ == "__main__":
    main()
