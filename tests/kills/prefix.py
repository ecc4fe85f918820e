"""Shared prefix of 1 000 tokens: computed, found in the cache, and found again after a kill."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from openai import OpenAI, OpenAIError

PREFIX_TOKENS, SUFFIX_TOKENS, ANSWER_TOKENS = 1000, 4, 16
# The bundled model's special tokens are before it.
FIRST_TOKEN_ID, TOKEN_IDS = 5, 2000
# Questions with the same prefix: the second finds it in the cache, if it comes to the same engine.
QUESTIONS = 4


def ask(url: str, number: int) -> Any:
    """The answer to one question: text, logprobs and end; what was cached is not compared.

    A sole engine that boots refuses new requests for that time; the SDK then asks again by itself.
    """
    prompt = [FIRST_TOKEN_ID + index * 7 % TOKEN_IDS for index in range(PREFIX_TOKENS)]
    prompt += [FIRST_TOKEN_ID + number] * SUFFIX_TOKENS
    with OpenAI(api_key="none", base_url=f"{url}/v1") as client:
        answer = client.completions.create(
            model="triolet-bundled",
            prompt=prompt,
            max_tokens=ANSWER_TOKENS,
            temperature=0.8,
            seed=number,
            logprobs=2,
        )
    (choice,) = answer.choices
    assert answer.usage is not None
    tokens = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    return choice.text, choice.logprobs and choice.logprobs.to_dict(), choice.finish_reason, tokens


async def check_prefix(url: str, disturb: Callable[[], Awaitable[None]]) -> list[Any]:
    """All answers, asked for twice; the second time something is done before each."""
    answers = []
    for turn in range(2):
        for number in range(QUESTIONS):
            if turn:
                await disturb()
            try:
                answers.append(await trio.to_thread.run_sync(ask, url, number))
            except OpenAIError as error:
                answers.append(str(error))
    return answers
