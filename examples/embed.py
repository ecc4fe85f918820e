"""Two prompts at once, one of them cancelled; afterwards nothing is left.

python examples/embed.py
"""

import trio

import triolet
from triolet import SamplingParams


async def tell(runtime: triolet.Runtime, prompt: str, max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, seed=1, ignore_eos=True)
    async with runtime.generate(prompt, params) as stream:  # leaving the block is the abort
        text = prompt
        try:
            async for output in stream:
                text += output.text
        finally:
            print(f"{text}\n[{stream.finish_reason or 'cancelled'}]\n")


async def main() -> None:
    async with triolet.open_runtime() as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell, runtime, "One morning, a quick red fox", 48)
            with trio.move_on_after(0.2):
                await tell(runtime, "The old lantern", 1000)
        (engine,) = await runtime.engine_statistics()
        while engine.kv_blocks_free < engine.kv_blocks:  # two steps may still hold some
            await trio.sleep(0.01)
            (engine,) = await runtime.engine_statistics()
        print(f"{engine.kv_blocks_free} of {engine.kv_blocks} KV blocks free")


if __name__ == "__main__":
    trio.run(main)
