"""Requests, an engine core and a checking worker to drive it with, for the tests of the core."""

from collections.abc import Hashable
from typing import Any

import attrs

from triolet.engine.config import EngineSettings
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.core.grammar import mask_bytes
from triolet.engine.core.kv_cache_manager import BlockPool, KVCacheManager
from triolet.engine.core.request import Request, make_request
from triolet.engine.core.scheduler import Scheduler
from triolet.engine.messages import AddRequest, RequestOutput
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import Step, StepResult, WorkerReady
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.fuzz.doubles.checking_worker import CheckingWorker

VOCAB = 50
FORM = StructuredOutputs.regex("[a-z]*")
READY = WorkerReady(
    kv_blocks=8, max_model_len=24, vocab_size=VOCAB, numerics_id="none", bitwise=True
)


def make_core(
    *,
    kv_blocks: int = 8,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 8,
    prefix_cache: bool = True,
    steps_in_flight: int = 1,
    scheduling_policy: str = "priority",
) -> EngineCore:
    """An engine core; most tests follow a request more easily without overlap."""
    settings = EngineSettings(
        model="none",
        block_tokens=4,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        prefix_cache=prefix_cache,
        steps_in_flight=steps_in_flight,
        scheduling_policy=scheduling_policy,
    )
    return EngineCore(settings, attrs.evolve(READY, kv_blocks=kv_blocks))


def make_worker(core: EngineCore) -> CheckingWorker:
    return CheckingWorker(
        kv_blocks=core.ready.kv_blocks,
        block_tokens=core.settings.block_tokens,
        rows=core.settings.max_num_seqs,
        vocab_size=VOCAB,
    )


def add_request(
    request_id: str,
    *,
    attempt: int = 1,
    prompt: int | list[int] = 3,
    output: list[int] | None = None,
    credit: int | None = None,
    eos: list[int] | None = None,
    max_tokens: int | None = 4,
    min_tokens: int = 0,
    seed: int | None = 7,
    stop_token_ids: tuple[int, ...] = (),
    events: bool = False,
    solo_tokens: int = 0,
) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        attempt=attempt,
        prompt_token_ids=list(range(prompt)) if isinstance(prompt, int) else prompt,
        output_token_ids=output or [],
        eos_token_ids=eos or [],
        credit=credit,
        events=events,
        solo_tokens=solo_tokens,
        sampling=SamplingParams(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            seed=seed,
            stop_token_ids=stop_token_ids,
        ),
    )


def new_request(
    request_id: str = "a",
    *,
    frontend: str = "f0",
    arrival: int = 1,
    prompt: int = 1,
    credit: int | None = None,
    max_model_len: int = 100,
    cache_root: bytes = b"",
    **fields: Any,
) -> Request:
    """The state of a request that has just come."""
    add = add_request(request_id, prompt=prompt, credit=credit, max_tokens=None)
    return make_request(
        frontend,
        attrs.evolve(add, **fields),
        arrival=arrival,
        max_model_len=max_model_len,
        cache_root=cache_root,
    )


@attrs.define(eq=False)
class CountingGrammar:
    """Tokens of one set in turns, so many of them.

    Token i of the output must be in `allowed[i % len(allowed)]`; complete after `length`.
    """

    allowed: list[set[int]]
    length: int
    vocab_size: int
    accepted: list[int] = attrs.field(factory=list)
    failure: str = ""

    @property
    def is_terminated(self) -> bool:
        return len(self.accepted) == self.length

    def accept(self, token_id: int) -> bool:
        if self.is_terminated or token_id not in self._next():
            self.failure = f"token {token_id} cannot come here"
            return False
        self.accepted.append(token_id)
        return True

    def fill_mask(self, words: memoryview) -> None:
        assert len(words) == mask_bytes(self.vocab_size)
        bits = sum(1 << token_id for token_id in self._next())
        words[:] = bits.to_bytes(len(words), "little")

    def _next(self) -> set[int]:
        return self.allowed[len(self.accepted) % len(self.allowed)]


def add_structured(
    request_id: str, *, attempt: int = 1, output: tuple[int, ...] = ()
) -> AddRequest:
    request = add_request(request_id, attempt=attempt, output=list(output))
    return attrs.evolve(request, sampling=attrs.evolve(request.sampling, structured_outputs=FORM))


def make_scheduler(
    *, max_num_seqs: int, max_num_batched_tokens: int, kv_blocks: int, block_tokens: int = 4
) -> Scheduler:
    """A scheduler over a KV cache of its own."""
    kv_cache = KVCacheManager(block_tokens, BlockPool(kv_blocks))
    return Scheduler(max_num_seqs, max_num_batched_tokens, kv_cache)


class Driver:
    """Runs steps against a checking worker and gathers what each frontend hears."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.worker = make_worker(core)
        self.heard: list[tuple[Hashable, RequestOutput]] = []

    def schedule(self) -> Step:
        """The next step, which there is."""
        step = self.core.schedule(0.0)
        assert step is not None
        self.core.check_invariants()
        return step

    def finish(self, result: StepResult) -> None:
        """Hear what a step brought."""
        for frontend, message in self.core.finish_step(result, 0.0).items():
            self.heard += [(frontend, output) for output in message.outputs]
        self.core.check_invariants()

    def step(self) -> bool:
        """One step; False if there was nothing to compute."""
        had_work = self.core.has_work()
        step = self.core.schedule(0.0)
        assert had_work == (step is not None)
        self.take()
        if step is not None:
            self.core.check_invariants()
            self.finish(self.worker.execute(step))
        self.take()
        return step is not None

    def take(self) -> None:
        for frontend, message in self.core.take_outputs().items():
            self.heard += [(frontend, output) for output in message.outputs]
        self.core.check_invariants()

    def run(self, steps: int = 1000) -> None:
        while steps and self.step():
            steps -= 1
        assert steps

    def tokens(self, request_id: str) -> list[int]:
        return [
            token_id
            for _, output in self.heard
            if output.request_id == request_id
            for token_id in output.token_ids
        ]

    def last(self, request_id: str) -> RequestOutput:
        return [output for _, output in self.heard if output.request_id == request_id][-1]


def tokens_alone(request: AddRequest) -> list[int]:
    """What the request yields in an engine of its own, with room for everything."""
    driver = Driver(make_core(kv_blocks=64, max_num_batched_tokens=64))
    driver.core.add("alone", request)
    driver.run()
    return driver.tokens(request.request_id)
