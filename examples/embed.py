"""Two prompts at once, one of them left before its end; afterwards nothing is left.

python examples/embed.py
"""

import math
from functools import partial

import trio

import triolet
from triolet import SamplingParams


async def tell(
    runtime: triolet.Runtime, prompt: str, max_tokens: int, *, leave_after: float = math.inf
) -> None:
    params = SamplingParams(max_tokens=max_tokens, seed=1, ignore_eos=True)
    async with runtime.generate(prompt, params) as stream:  # leaving the block is the abort
        text = prompt
        async for output in stream:
            text += output.text
            if stream.output_tokens >= leave_after:
                break
        print(f"{text}\n[{stream.finish_reason or 'left'}]\n")


async def main() -> None:
    async with triolet.open_runtime() as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell, runtime, "One morning, a quick red fox", 48)
            # However fast it is, an engine computes at most a window of tokens ahead of its reader.
            nursery.start_soon(partial(tell, runtime, "The old lantern", 1000, leave_after=20))
        (engine,) = await runtime.engine_statistics()
        while engine.kv_blocks_free < engine.kv_blocks:  # two steps may still hold some
            await trio.sleep(0.01)
            (engine,) = await runtime.engine_statistics()
        print(f"{engine.kv_blocks_free} of {engine.kv_blocks} KV blocks free")


if __name__ == "__main__":
    trio.run(main)
