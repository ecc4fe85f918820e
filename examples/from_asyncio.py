"""Generation from an asyncio program: the runtime is in a thread that asyncio owns.

python examples/from_asyncio.py
"""

import asyncio

import triolet
from triolet import SamplingParams


async def main() -> None:
    llm = await asyncio.to_thread(triolet.LLM)
    try:
        prompts = ["One morning, a quick red fox", "The old lantern"]
        params = SamplingParams(max_tokens=24, seed=1)
        completions = await asyncio.to_thread(llm.generate, prompts, params)
        for prompt, completion in zip(prompts, completions, strict=True):
            print(f"{prompt}{completion.text}")
    finally:
        await asyncio.to_thread(llm.close)


if __name__ == "__main__":
    asyncio.run(main())
