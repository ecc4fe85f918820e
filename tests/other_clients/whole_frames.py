"""Streams as `vllm bench serve` reads them: each frame is `data: ` and JSON, and nothing else.

It is not installed here, as it comes with all of vLLM. Its requests have no more than these.

python whole_frames.py URL
"""

import json
import sys
import urllib.request

SHARED = {
    "model": "triolet-bundled",
    "temperature": 0,
    "max_tokens": 16,
    "repetition_penalty": 1.0,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}
MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "Tell me a story."}]}]
BODIES = {
    "/v1/completions": {**SHARED, "prompt": "Once upon a time", "logprobs": None},
    "/v1/chat/completions": {**SHARED, "messages": MESSAGES},
}
for path, body in BODIES.items():
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(sys.argv[1] + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        frames = answer.read().decode().split("\n\n")
    assert frames.pop() == "", "the last frame is whole"
    chunks = [frame.removeprefix("data: ") for frame in frames if not frame.startswith(":")]
    assert chunks.pop() == "[DONE]"
    *_, last = map(json.loads, chunks)
    assert last["usage"]["completion_tokens"] == SHARED["max_tokens"]
    sys.stdout.write(f"{path}: {len(chunks)} chunks  ")
