"""Driver of an engine core, with a worker that checks its steps, and what frontends hear."""

from collections import deque
from collections.abc import Iterator

import attrs

from triolet.engine.config import EngineSettings
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.core.request import Request
from triolet.engine.messages import AddRequest, Grant, LiveRequest, RequestKey, RequestOutput
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import Step, WorkerReady
from triolet.fuzz.doubles.checking_worker import CheckingWorker

from ..suite import Driver, joined, limit, numbers

VOCAB = 100


@attrs.define(eq=False)
class EngineCoreDriver(Driver):
    """An engine core and its worker."""

    core: EngineCore = attrs.field(init=False)
    worker: CheckingWorker = attrs.field(init=False)
    steps_in_flight: deque[Step] = attrs.field(factory=deque)
    # {row: request id}, as the steps have named them.
    names: dict[int, str] = attrs.field(factory=dict)

    def seen(self) -> Iterator[str]:
        """What frontends hear besides."""
        for frontend, message in self.core.take_outputs().items():
            yield from (f"{frontend} hears {describe(output)}" for output in message.outputs)
        self.core.check_invariants()

    def engine(
        self, *, blocks: str, block_tokens: str, seqs: str, budget: str, model_len: str = "100",
        in_flight: str = "1",
    ) -> list[str]:  # fmt: skip
        """Begin. Most things are easier to follow with one step in flight."""
        settings = EngineSettings(
            model="none",
            block_tokens=int(block_tokens),
            max_num_seqs=int(seqs),
            max_num_batched_tokens=int(budget),
            steps_in_flight=int(in_flight),
        )
        ready = WorkerReady(
            kv_blocks=int(blocks),
            max_model_len=int(model_len),
            vocab_size=VOCAB,
            numerics_id="none",
            bitwise=True,
        )
        self.core = EngineCore(settings, ready)
        self.worker = CheckingWorker(int(blocks), int(block_tokens), int(seqs), VOCAB)
        return []

    def add(
        self, name: str, *, prompt: str, first: str = "0", attempt: str = "1",
        max_tokens: str = "end", credit: str = "end", output: str = "", stop: str = "",
        eos: str = "", frontend: str = "f0",
    ) -> list[str]:  # fmt: skip
        """The prompt is so many numbers from `first` on."""
        request = AddRequest(
            request_id=name,
            attempt=int(attempt),
            prompt_token_ids=list(range(int(first), int(first) + int(prompt))),
            output_token_ids=numbers(output),
            eos_token_ids=numbers(eos),
            credit=limit(credit),
            sampling=SamplingParams(
                seed=sum(name.encode()),
                max_tokens=limit(max_tokens),
                stop_token_ids=numbers(stop),
            ),
        )
        self.core.add(frontend, request)
        return []

    def abort(self, name: str, *, attempt: str = "1") -> list[str]:
        """The frontend wants no more."""
        self.core.abort("f0", [RequestKey(name, int(attempt))])
        return []

    def grant(self, name: str, *, credit: str, attempt: str = "1") -> list[str]:
        """The frontend has room."""
        self.core.grant("f0", [Grant(name, int(attempt), limit(credit))])
        return []

    def resync(self, frontend: str, *wanted: str) -> Iterator[str]:
        """Of ID:NEXT_INDEX, each attempt 1 and its credit to the end."""
        named = [word.split(":") for word in wanted]
        live = [LiveRequest(name, 1, int(next_index), None) for name, next_index in named]
        outputs, unknown = self.core.resync(frontend, live)
        yield from (f"{frontend} hears {describe(output)}" for output in outputs)
        yield from (f"{frontend} hears {each.request_id} is unknown" for each in unknown)

    def forget(self, frontend: str) -> list[str]:
        """The frontend is gone for good."""
        self.core.forget_home(frontend)
        return []

    def schedule(self) -> Iterator[str]:
        """The step that the workers get."""
        step = self.core.schedule(0.0)
        if step is None:
            yield "nothing to compute"
            return
        self.steps_in_flight.append(step)
        yield f"step {step.number}"
        yield from (f"  row {row} is free" for row in step.finished)
        rows = {request.row: request.request_id for request in self.core._scheduler.running}
        for new in step.new:
            self.names[new.row] = rows[new.row]
            computed = f", {new.computed_tokens} computed" if new.computed_tokens else ""
            yield (
                f"  row {new.row} is {rows[new.row]}: {len(new.token_ids)} tokens{computed},"
                f" blocks {joined(new.block_ids)}"
            )
        for row, block_ids in step.grown:
            yield f"  {self.names[row]} grows by blocks {joined(block_ids)}"
        for row, count, samples in zip(step.rows, step.token_counts, step.samples, strict=True):
            yield f"  {self.names[row]} computes {count}{' and samples' * samples}"

    def finish(self) -> Iterator[str]:
        """The workers answer the oldest step."""
        result = self.worker.execute(self.steps_in_flight.popleft())
        for frontend, message in self.core.finish_step(result, 0.0).items():
            yield from (f"{frontend} hears {describe(output)}" for output in message.outputs)

    def steps(self, count: str = "1000") -> Iterator[str]:
        """Schedule and finish, until there is no work."""
        for _ in range(int(count)):
            yield from self.schedule()
            if not self.steps_in_flight:
                break
            yield from self.finish()
            self.core.check_invariants()

    def state(self) -> Iterator[str]:
        """Who runs, who waits, what is free."""
        scheduler = self.core._scheduler
        for request in (*scheduler.running, *scheduler.waiting.requests()):
            yield f"{place(request)} {request.request_id}"
        statistics = self.core.statistics()
        yield f"{statistics.kv_blocks_free} of {statistics.kv_blocks} blocks are free"


def place(request: Request) -> str:
    """Its status, and whether it lacks credit."""
    return request.status.value + ("" if request.has_credit else " (no credit)")


def describe(output: RequestOutput) -> str:
    """One output in words."""
    text = f"{output.request_id}[{output.first_index}:] {joined(output.token_ids)}".rstrip()
    if output.finish_reason is not None:
        text += f" ends: {output.finish_reason.value}"
    if output.stop_token_id is not None:
        text += f" {output.stop_token_id}"
    return text + (f" ({output.error_code}: {output.error})" if output.error else "")
