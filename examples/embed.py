"""Two prompts at once, one of them cancelled; afterwards nothing is left.

python examples/embed.py
"""

import trio

import triolet
from triolet import SamplingParams


async def tell(runtime: triolet.Runtime, prompt: str) -> None:
    async with runtime.generate(prompt, SamplingParams(max_tokens=48, seed=1)) as stream:
        async for output in stream:
            print(output.text, end="", flush=True)
    print(f"\n[{stream.finish_reason}, {stream.usage.output_tokens} tokens]")


async def main() -> None:
    async with triolet.open_runtime() as runtime:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell, runtime, "One morning, a quick red fox")
            with trio.move_on_after(0.2):  # leaving the block is the abort
                await tell(runtime, "The old lantern")
        (engine,) = await runtime.engine_statistics()
        print(f"{engine.kv_blocks_free} of {engine.kv_blocks} KV blocks free")


if __name__ == "__main__":
    trio.run(main)
