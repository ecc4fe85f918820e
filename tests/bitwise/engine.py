"""Requests, an engine core and an executor in one thread, with all that must not matter drawn.

Half of the requests are greedy, half sampled. Some begin alike, so that there is a prefix to share;
all ask for logprobs, whose bits tell more than tokens do.

Steps overlap as they do between processes: one is scheduled before the result of the one before it
has been applied.
"""

import pathlib
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import attrs

from triolet.engine.config import EngineSettings
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.messages import AddRequest, FinishReason, StepOutputs
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import StepResult, WorkerReady
from triolet.engine.worker.executor_interface import WorkerExecutor
from triolet.engine.worker.executors import make_executor
from triolet.tests.engine.steps import no_mask

# How many beginnings there are, and how long they are in tokens: no multiples of a block.
BEGINNINGS, BEGINNING_TOKENS_MAX = 5, 150
PROMPT_TOKENS_MAX = 300
FIRST_TOKEN_ID = 5  # the bundled model's special tokens are before it
FRONTEND = "frontend"
BLOCK_TOKENS = 16
ROWS_MAX = 64


@attrs.frozen
class Stream:
    """What one request got: tokens, and the bytes of their logprobs, 4 each."""

    token_ids: tuple[int, ...]
    logprobs: bytes

    def rest(self, tokens: int) -> "Stream":
        """What comes after its first `tokens`."""
        return Stream(self.token_ids[tokens:], self.logprobs[4 * tokens :])


def draw_requests(count: int, *, tokens: int, vocabulary: int, seed: int) -> list[AddRequest]:
    """So many requests for `tokens` tokens each."""
    chance = Random(f"bitwise {seed}")

    def ids(least: int, most: int) -> list[int]:
        length = chance.randint(least, most)
        return [chance.randrange(FIRST_TOKEN_ID, vocabulary) for _ in range(length)]

    beginnings = [ids(1, BEGINNING_TOKENS_MAX) for _ in range(BEGINNINGS)]
    requests = []
    for number in range(count):
        prompt = [*chance.choice(beginnings), *ids(1, PROMPT_TOKENS_MAX - BEGINNING_TOKENS_MAX)]
        sampling = _greedy(tokens) if number % 2 else _sampled(chance, tokens)
        requests.append(
            AddRequest(
                request_id=f"r{number}", attempt=1, prompt_token_ids=prompt, sampling=sampling
            )
        )
    return requests


def _greedy(tokens: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=tokens,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=1.0,
        seed=0,
        ignore_eos=True,
        logprobs=0,
    )


def _sampled(chance: Random, tokens: int) -> SamplingParams:
    return attrs.evolve(
        _greedy(tokens),
        temperature=chance.choice((0.7, 1.0, 1.3)),
        top_k=chance.choice((0, 0, 20)),
        top_p=chance.choice((1.0, 0.9)),
        min_p=chance.choice((0.0, 0.05)),
        repetition_penalty=chance.choice((1.0, 1.1)),
        presence_penalty=chance.choice((0.0, 0.4)),
        seed=chance.getrandbits(40),
    )


def replays(
    requests: Sequence[AddRequest], streams: dict[str, Stream], seed: int
) -> list[AddRequest]:
    """Each request as it is sent again after a death: cut at a random token, nothing to the end."""
    chance = Random(f"cuts {seed}")
    cuts = (chance.randrange(len(streams[one.request_id].token_ids)) for one in requests)
    return [
        attrs.evolve(one, attempt=2, output_token_ids=list(streams[one.request_id].token_ids[:cut]))
        for one, cut in zip(requests, cuts, strict=True)
    ]


@attrs.frozen(kw_only=True)
class Variation:
    """One way to run the same requests."""

    name: str
    # So many requests arrive before a step at most; 0: each when the one before it has ended.
    arrivals_max: int
    # Tokens of a step: drawn anew for each, between these.
    budget: tuple[int, int] = (ROWS_MAX, 512)
    # 0: enough for everybody.
    kv_blocks: int = 0
    prefix_cache: bool = False
    steps_in_flight: int = 1
    threads: int = 1
    replayed: bool = False
    # How long tokens may wait: long enough, and steps may be larger than `budget`.
    merge_s: float = 0.0
    # Before a step, in one of so many cases, the worker is lost; 0: never.
    lost_once_in: int = 0


@attrs.frozen
class Outcome:
    """The streams, and what happened on the way."""

    streams: dict[str, Stream]
    preemptions: int
    prefix_hits: int
    steps: int
    losses: int


@attrs.define(eq=False)
class _Collected:
    """Outputs so far, put together."""

    token_ids: dict[str, list[int]] = attrs.field(factory=dict)
    logprobs: dict[str, bytes] = attrs.field(factory=dict)
    ended: int = 0

    def take(self, messages: Mapping[Any, StepOutputs]) -> None:
        for message in messages.values():
            assert not message.attempts, "requests with logprobs are no columns"
            for output in message.outputs:
                if output.finish_reason is not None:
                    assert output.finish_reason is FinishReason.LENGTH, output
                    self.ended += 1
                self.token_ids.setdefault(output.request_id, []).extend(output.token_ids)
                if output.logprobs is not None:
                    before = self.logprobs.get(output.request_id, b"")
                    self.logprobs[output.request_id] = before + output.logprobs.logprobs


def run(
    folder: pathlib.Path,
    executor: Mapping[str, Any],
    variation: Variation,
    requests: Sequence[AddRequest],
    *,
    seed: int = 0,
) -> Outcome:
    """Serve all requests in one way; each gets a stream, of what it did not have before."""
    chance = Random(f"{variation.name} {seed}")
    longest = max(len(r.prompt_token_ids) + (r.sampling.max_tokens or 0) for r in requests)
    settings = EngineSettings(
        model=str(folder),
        block_tokens=BLOCK_TOKENS,
        max_num_seqs=ROWS_MAX,
        max_num_batched_tokens=variation.budget[1],
        kv_blocks=variation.kv_blocks or ROWS_MAX * -(-longest // BLOCK_TOKENS),
        prefix_cache=variation.prefix_cache,
        steps_in_flight=variation.steps_in_flight,
        threads=variation.threads,
        **executor,
    )
    worker, ready = _load(settings)
    core = EngineCore(settings, ready)
    waiting = deque(attrs.evolve(each, merge_s=variation.merge_s) for each in requests)
    collected = _Collected()
    in_flight: deque[StepResult] = deque()
    steps = 0
    while waiting or core.has_work():
        _arrive(core, waiting, variation, chance)
        if variation.lost_once_in and not chance.randrange(variation.lost_once_in):
            in_flight.clear()
            core.undo_steps()
            core.forget_blocks()
            worker, again = _load(settings)
            assert again == ready
        least, most = variation.budget
        core._scheduler.max_num_batched_tokens = chance.randint(least, most)
        result = _schedule(core, worker)
        if result is not None:
            steps += 1
            in_flight.append(result)
        if in_flight and (result is None or len(in_flight) == variation.steps_in_flight):
            collected.take(core.finish_step(in_flight.popleft(), 0.0))
        collected.take(core.take_outputs())
    assert collected.ended == len(requests)
    streams = {
        name: Stream(tuple(ids), collected.logprobs.get(name, b""))
        for name, ids in collected.token_ids.items()
    }
    statistics = core.statistics()
    losses = statistics.worker_restarts
    return Outcome(streams, statistics.preemptions, statistics.prefix_hits, steps, losses)


def _load(settings: EngineSettings) -> tuple[WorkerExecutor, WorkerReady]:
    worker = make_executor(settings, 0, lambda seconds: None)
    return worker, worker.load(lambda phase, fraction: None)


def _arrive(
    core: EngineCore, waiting: deque[AddRequest], variation: Variation, chance: Random
) -> None:
    if variation.arrivals_max:
        count = chance.randint(0 if core.has_work() else 1, variation.arrivals_max)
    else:
        count = 0 if core.has_work() else 1
    for _ in range(min(count, len(waiting))):
        core.add(FRONTEND, waiting.popleft())


def _schedule(core: EngineCore, worker: WorkerExecutor) -> StepResult | None:
    step = core.schedule(0.0)
    return None if step is None else worker.execute(step, no_mask)
