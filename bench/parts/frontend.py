"""Cost of a frontend by itself: admission, tokenising, links, ledger, detokenising, streams.

    python -m triolet.bench frontend

The engine is `null_engine`, a process of its own. *Lockstep* is as the reference figures measured
vLLM's AsyncLLM: the next step leaves only when every consumer has taken its token, so nothing is
merged. *One token* sends requests of one output token, so many in flight. CPU is this process's,
all its threads; figures are medians of some rounds, with their spread.
"""

import json
import random
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import attrs
import trio

from ...engine.control_messages import EngineReady
from ...engine.sampling_params import SamplingParams
from ...runtime.fleet.membership import EngineDirectory
from ...runtime.frontend.frontend import Frontend
from ...runtime.messages import EngineMembership
from ...runtime.runtime import (
    make_frontend,
    make_settings,
    open_frontend_hub,
    open_frontend_services,
)
from ...runtime.text.input_processor import InputProcessor
from ...runtime.text.prompts import Prompt
from .calibration import Calibration, Target
from .null_engine import ENGINE, FRONTEND
from .words import argument_parser, at_least_one

PROMPT_TOKENS = 128
TOKENS = 500
REQUESTS = 4000
IN_FLIGHT = 64
ROUNDS = 7
# vLLM 0.32's AsyncLLM on the same kind of machine (reference figures of the project).
VLLM_TOKEN_US, VLLM_REQUEST_US = 9.6, 176.3
TARGET_TOKEN_US = Target(6.0)


@attrs.define(eq=False)
class Bench:
    """A frontend with the null engine behind it, and the socket that asks for steps."""

    frontend: Frontend
    control: socket.socket
    prompt: list[int]
    # Consumers that have not taken their token of the step in hand.
    behind: int = 0

    def taken(self, streams: int) -> None:
        """Note that a consumer took its token; the last one asks for the next step."""
        self.behind -= 1
        if self.behind == 0:
            self.behind = streams
            self.control.send(bytes([streams]))

    async def stream(self, streams: int, tokens: int) -> None:
        """Consume a stream in lockstep with the others."""
        params = SamplingParams(max_tokens=tokens, seed=1, ignore_eos=True)
        async with self.frontend.generate(self.prompt, params) as stream:
            self.taken(streams)
            async for output in stream:
                if output.finish_reason is None:
                    self.taken(streams)
        assert len(stream.token_ids) == tokens

    async def lockstep(self, streams: int, tokens: int) -> int:
        """Tokens that were delivered."""
        self.behind = streams
        async with trio.open_nursery() as nursery:
            for _ in range(streams):
                nursery.start_soon(self.stream, streams, tokens)
        return streams * tokens

    async def one_token(self, prompt: Prompt, count: int) -> int:
        """Requests that were served, `IN_FLIGHT` at a time."""
        left = count

        async def client() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                params = SamplingParams(max_tokens=1)
                async with self.frontend.generate(prompt, params) as stream:
                    async for _ in stream:
                        pass
                assert len(stream.token_ids) == 1

        async with trio.open_nursery() as nursery:
            for _ in range(IN_FLIGHT):
                nursery.start_soon(client)
        return count


def _spawn_engine(control: socket.socket, *words: str) -> subprocess.Popen[bytes]:
    module = "triolet.bench.parts.null_engine"
    command = [sys.executable, "-m", module, str(control.fileno()), *words]
    return subprocess.Popen(command, pass_fds=[control.fileno()])


@asynccontextmanager
async def open_bench() -> AsyncIterator[Bench]:
    """Start the null engine and link it to a frontend in this process."""
    settings = make_settings(executor="null")
    inputs = InputProcessor.load(settings)
    # Tokens that are a text by themselves, as in the reference figures.
    texts = inputs.tokenizer.table(skip_special_tokens=True).texts
    whole = [token_id for token_id, text in enumerate(texts) if text]
    ours, theirs = socket.socketpair()
    async with AsyncExitStack() as stack:
        stack.enter_context(ours)
        hub = open_frontend_hub(secrets.token_hex(8), FRONTEND)
        channel = await stack.enter_async_context(hub)
        frontend = make_frontend(Frontend, settings, channel, inputs, term=FRONTEND.epoch)
        await stack.enter_async_context(open_frontend_services(channel, frontend.client))
        engine = stack.enter_context(_spawn_engine(theirs, *channel.endpoints, json.dumps(whole)))
        stack.callback(engine.kill)
        theirs.close()
        frontend.client.apply_membership(_membership(frontend.max_model_len, len(texts)))
        while not frontend.client.balancer.engines:
            await frontend.client.engines_changed.wait()
        yield Bench(frontend, ours, random.Random(1).choices(whole, k=PROMPT_TOKENS))


def _membership(max_model_len: int, vocab_size: int) -> EngineMembership:
    ready = EngineReady(
        kv_blocks=1,
        block_tokens=16,
        max_model_len=max_model_len,
        max_num_seqs=256,
        vocab_size=vocab_size,
        numerics_id="null",
        bitwise=True,
        settings_digest="",
    )
    directory = EngineDirectory()
    directory.handle_starting(ENGINE.rank, ENGINE.epoch)
    return directory.handle_ready(ENGINE.rank, ready)


async def _measure(
    title: str, note: str, work: Callable[[], Awaitable[int]], rounds: int
) -> tuple[float, Calibration]:
    """Print a line; returns the median, and what was taken beside the rounds."""
    spent_us, rates, calibration = [], [], Calibration()
    for _ in range(rounds + 1):
        cpu_s, began_s = time.process_time(), time.perf_counter()
        done = await work()
        rates.append(done / (time.perf_counter() - began_s))
        spent_us.append((time.process_time() - cpu_s) / done * 1e6)
        await trio.to_thread.run_sync(calibration.take)
    spent_us, rates = spent_us[1:], rates[1:]  # the first round warms up
    print(
        f"{title:40} {statistics.median(spent_us):8.2f} µs CPU"
        f" ({min(spent_us):.2f} to {max(spent_us):.2f}),"
        f" {statistics.median(rates):8.0f} a second; {note}",
        flush=True,
    )
    return statistics.median(spent_us), calibration


async def run(rounds: int) -> None:
    """Print the table."""
    text = "Once upon a time there was a fox. " * 4
    async with open_bench() as bench:
        print(f"frontend alone, null engine; medians of {rounds} rounds after one to warm up")
        for streams, vllm_us, target in (
            (32, VLLM_TOKEN_US, TARGET_TOKEN_US),
            (128, 7.9, None),
        ):
            work = partial(bench.lockstep, streams, TOKENS * 32 // streams)
            title, note = f"a token, {streams} streams in lockstep", f"vLLM {vllm_us}"
            spent_us, calibration = await _measure(title, note, work, rounds)
            if target is not None:
                print(f"  {target.verdict(spent_us, calibration.factor())}")
            print(f"  {calibration.describe()}", flush=True)
        prompts: list[tuple[str, Prompt]] = [
            (f"{PROMPT_TOKENS} ids", bench.prompt),
            (f"{len(text)} characters", text),
        ]
        for title, prompt in prompts:
            note = f"vLLM {VLLM_REQUEST_US} (128 ids)"
            work = partial(bench.one_token, prompt, REQUESTS)
            await _measure(f"a request of one token, {title}", note, work, rounds)


def main() -> None:
    """Run by the command line."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=at_least_one, default=ROUNDS)
    options = parser.parse_args()
    trio.run(run, options.rounds)


if __name__ == "__main__":
    main()
