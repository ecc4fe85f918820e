"""The unmodified SDK: streamed chats beside each other, without retries, and when each piece came.

python streams.py URL KEY COUNT TOKENS; prints `begun` when each has some tokens, then JSON.
"""

import itertools
import json
import sys
import threading
import time
from typing import Any

from openai import OpenAI

url, key, count, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
BEGUN_PIECES = 5
begun = threading.Barrier(count + 1)
found: list[dict[str, Any]] = [{} for _ in range(count)]


def stream(number: int, client: OpenAI) -> None:
    """Read one chat to its end."""
    pieces: list[str] = []
    times: list[float] = []
    chunks = client.chat.completions.create(
        model="triolet-bundled",
        messages=[{"role": "user", "content": f"Tell me story number {number}."}],
        max_completion_tokens=tokens,
        seed=number,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    reason = None
    for chunk in chunks:
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            reason = choice.finish_reason or reason
        times.append(time.monotonic())
        if len(times) == BEGUN_PIECES:
            begun.wait()
    gaps = [after - before for before, after in itertools.pairwise(times)]
    found[number] = {"text": "".join(pieces), "reason": reason, "gap_s": max(gaps)}


with OpenAI(api_key=key, base_url=f"{url}/v1", max_retries=0, timeout=90) as client:
    threads = [threading.Thread(target=stream, args=(n, client)) for n in range(count)]
    for thread in threads:
        thread.start()
    begun.wait()
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    for thread in threads:
        thread.join()
sys.stdout.write(json.dumps(found))
