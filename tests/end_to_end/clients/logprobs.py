"""The unmodified SDK: logprobs whole and streamed, in chat and in Responses, and a refusal.

python logprobs.py URL; prints what came, as JSON.
"""

import json
import sys
from typing import Any

from openai import BadRequestError, OpenAI

QUESTION = "What is the capital of Japan?"
CHAT: dict[str, Any] = {
    "model": "triolet-bundled",
    "messages": [{"role": "user", "content": QUESTION}],
    "max_completion_tokens": 16,
}


def chat_logprobs(client: OpenAI) -> dict[str, Any]:
    asked = {**CHAT, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.logprobs is not None
    content = whole.logprobs.content or []
    streamed: list[Any] = []
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            if choice.logprobs is not None:
                streamed += choice.logprobs.content or []
    return {
        "text": whole.message.content,
        "bytes": [byte for entry in content for byte in entry.bytes or []],
        "logprobs": [entry.logprob for entry in content],
        "tops": [[top.logprob for top in entry.top_logprobs] for entry in content],
        "streamed": [entry.logprob for entry in streamed],
        "ends": whole.finish_reason,
    }


def responses_logprobs(client: OpenAI) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "model": "triolet-bundled",
        "input": QUESTION,
        "temperature": 0,
        "max_output_tokens": 16,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
    }
    whole: Any = client.responses.create(**asked)
    part = whole.output[0].content[0]
    deltas = []
    for event in client.responses.create(**asked, stream=True):
        if event.type == "response.output_text.delta":
            deltas += [entry.logprob for entry in event.logprobs]
    return {"part": [entry.logprob for entry in part.logprobs], "deltas": deltas}


def refused(client: OpenAI) -> str | None:
    try:
        client.chat.completions.create(**{**CHAT, "n": 1000})
    except BadRequestError as error:
        return None if error.param is None else str(error.param)
    return None


with OpenAI(api_key="none", base_url=f"{sys.argv[1]}/v1") as client:
    seen = {
        "chat": chat_logprobs(client),
        "responses": responses_logprobs(client),
        "refused": refused(client),
    }
sys.stdout.write(json.dumps(seen))
