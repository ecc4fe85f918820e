"""The unmodified SDK: choices, logprobs, penalties, biases and bad words, in every protocol.

python parameters.py URL; prints what came, as JSON.
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


def choices(client: OpenAI) -> dict[str, Any]:
    asked = {**CHAT, "temperature": 2.0, "seed": 5, "n": 3}
    whole = client.chat.completions.create(**asked)
    texts: dict[int, str] = {0: "", 1: "", 2: ""}
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    return {
        "whole": [choice.message.content for choice in whole.choices],
        "streamed": [texts[index] for index in range(3)],
        "usage": whole.usage.to_dict() if whole.usage else None,
    }


def echoed(client: OpenAI) -> dict[str, Any]:
    found = client.completions.create(
        model="triolet-bundled", prompt=QUESTION, max_tokens=1, echo=True, logprobs=2, temperature=0
    ).choices[0]
    assert found.logprobs is not None
    return {"text": found.text, **found.logprobs.to_dict()}


def steered(client: OpenAI, token_id: int) -> dict[str, Any]:
    """One token wanted, by bias and by what is allowed; one word not wanted."""

    def ask(**more: Any) -> str:
        answer = client.chat.completions.create(**{**CHAT, "temperature": 0, **more})
        return str(answer.choices[0].message.content)

    return {
        "biased": ask(logit_bias={str(token_id): 100}, max_completion_tokens=4),
        "allowed": ask(extra_body={"allowed_token_ids": [token_id]}, max_completion_tokens=4),
        "without": ask(extra_body={"bad_words": ["Tokyo"]}),
        "penalised": ask(presence_penalty=2, frequency_penalty=2, logit_bias={str(token_id): 3}),
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
        "choices": choices(client),
        "echoed": echoed(client),
        "steered": steered(client, int(sys.argv[2])),
        "responses": responses_logprobs(client),
        "refused": refused(client),
    }
sys.stdout.write(json.dumps(seen))
