"""Scenarios as text: commands in, the whole trace out (the form of etcd/raft's testdata).

    # Anything up to the first command says what the scenario shows.
    add a prompt=5 max_tokens=3
    step
    ----
    step 1: new a row=0 ...

A block is commands, a line `----`, and the trace of these commands, up to an empty line. To write
the traces anew after an intended change, and then read the difference:
`TRIOLET_REWRITE_SCENARIOS=1 pytest tests/scenarios`.
"""

import os
import pathlib
from collections import deque
from collections.abc import Callable

import attrs
import pytest

from triolet.engine.config import EngineSettings
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.core.request import Request
from triolet.engine.messages import AddRequest, Grant, LiveRequest, RequestKey, RequestOutput
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import Step, WorkerReady
from triolet.fuzz.doubles.checking_worker import CheckingWorker

HERE = pathlib.Path(__file__).parent
REWRITE = "TRIOLET_REWRITE_SCENARIOS"
SEPARATOR = "----"
VOCAB = 100


@attrs.define
class Block:
    """Lines before the commands (comments, empty), commands, and their trace."""

    comments: list[str] = attrs.field(factory=list)
    commands: list[str] = attrs.field(factory=list)
    trace: list[str] = attrs.field(factory=list)


def parse(text: str) -> list[Block]:
    """A scenario's blocks; the last one may consist of comments only."""
    blocks, block, in_trace = [], Block(), False
    for line in text.splitlines():
        if in_trace:
            if line:
                block.trace.append(line)
                continue
            blocks.append(block)
            block, in_trace = Block(), False
        elif line == SEPARATOR:
            in_trace = True
        elif line and not line.startswith("#"):
            block.commands.append(line)
        elif line or not blocks:
            assert not block.commands, f"a comment among commands: {line}"
            block.comments.append(line)
    return [*blocks, block]


def render(blocks: list[Block]) -> str:
    """The scenario's text again."""
    texts = []
    for block in blocks:
        lines = [*block.comments, *block.commands]
        if block.commands:
            lines += [SEPARATOR, *block.trace]
        if lines:
            texts.append("\n".join(lines) + "\n")
    return "\n".join(texts)


def run_block(interpreter: "EngineCoreInterpreter", block: Block) -> list[str]:
    """The trace of a block's commands, as it is now."""
    trace: list[str] = []
    for line in block.commands:
        command, *rest = line.split()
        words = [word for word in rest if "=" not in word]
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        trace += interpreter.run(command, words, options)
    return trace or ["ok"]


@attrs.define(eq=False)
class EngineCoreInterpreter:
    """An engine core, a worker that checks its steps, and what frontends hear."""

    core: EngineCore = attrs.field(init=False)
    worker: CheckingWorker = attrs.field(init=False)
    steps_in_flight: deque[Step] = attrs.field(factory=deque)
    # {row: request id}, as the steps have named them.
    names: dict[int, str] = attrs.field(factory=dict)

    def run(self, command: str, words: list[str], options: dict[str, str]) -> list[str]:
        """Carry out one command; the lines of its trace."""
        commands: dict[str, Callable[[list[str], dict[str, str]], list[str]]] = {
            "engine": self.engine,
            "add": self.add,
            "abort": self.abort,
            "grant": self.grant,
            "resync": self.resync,
            "forget": self.forget,
            "schedule": self.schedule,
            "finish": self.finish,
            "steps": self.steps,
            "state": self.state,
        }
        trace = commands[command](words, options)
        for frontend, message in self.core.take_outputs().items():
            trace += [f"{frontend} hears {describe(output)}" for output in message.outputs]
        self.core.check_invariants()
        return trace

    def engine(self, words: list[str], options: dict[str, str]) -> list[str]:
        """engine blocks= block_tokens= seqs= budget= [model_len= in_flight=2]"""
        blocks, block_tokens = int(options["blocks"]), int(options["block_tokens"])
        seqs = int(options["seqs"])
        settings = EngineSettings(
            model="none",
            block_tokens=block_tokens,
            max_num_seqs=seqs,
            max_num_batched_tokens=int(options["budget"]),
            # Most things are easier to follow one step at a time.
            steps_in_flight=int(options.get("in_flight", "1")),
        )
        ready = WorkerReady(
            kv_blocks=blocks,
            max_model_len=int(options.get("model_len", "100")),
            vocab_size=VOCAB,
            numerics_id="none",
            bitwise=True,
        )
        self.core = EngineCore(settings, ready)
        self.worker = CheckingWorker(blocks, block_tokens, seqs, VOCAB)
        return []

    def add(self, words: list[str], options: dict[str, str]) -> list[str]:
        """add ID prompt=COUNT [first= attempt= max_tokens= credit= output=1,2 stop= eos=]

        The prompt is so many numbers from `first` on.
        """
        first = int(options.get("first", "0"))
        max_tokens = options.get("max_tokens")
        request = AddRequest(
            request_id=words[0],
            attempt=int(options.get("attempt", "1")),
            prompt_token_ids=list(range(first, first + int(options["prompt"]))),
            output_token_ids=numbers(options.get("output", "")),
            eos_token_ids=numbers(options.get("eos", "")),
            credit=credit(options.get("credit", "end")),
            sampling=SamplingParams(
                seed=sum(words[0].encode()),
                max_tokens=None if max_tokens is None else int(max_tokens),
                stop_token_ids=numbers(options.get("stop", "")),
            ),
        )
        self.core.add(options.get("frontend", "f0"), request)
        return []

    def abort(self, words: list[str], options: dict[str, str]) -> list[str]:
        """abort ID [attempt= frontend=]"""
        self.core.abort(options.get("frontend", "f0"), [key(words[0], options)])
        return []

    def grant(self, words: list[str], options: dict[str, str]) -> list[str]:
        """grant ID credit= [attempt= frontend=]"""
        named = key(words[0], options)
        grants = [Grant(named.request_id, named.attempt, credit(options["credit"]))]
        self.core.grant(options.get("frontend", "f0"), grants)
        return []

    def resync(self, words: list[str], options: dict[str, str]) -> list[str]:
        """resync FRONTEND ID:NEXT_INDEX ... (attempt 1, credit to the end)"""
        frontend, *wanted = words
        live = []
        for word in wanted:
            request_id, next_index = word.split(":")
            live.append(LiveRequest(request_id, 1, int(next_index), None))
        outputs, unknown = self.core.resync(frontend, live)
        trace = [f"{frontend} hears {describe(output)}" for output in outputs]
        return trace + [f"{frontend} hears {named.request_id} is unknown" for named in unknown]

    def forget(self, words: list[str], options: dict[str, str]) -> list[str]:
        """forget FRONTEND"""
        self.core.forget_home(words[0])
        return []

    def schedule(self, words: list[str], options: dict[str, str]) -> list[str]:
        """schedule: the step that the workers get"""
        step = self.core.schedule(0.0)
        if step is None:
            return ["nothing to compute"]
        self.steps_in_flight.append(step)
        trace = [f"step {step.number}"]
        trace += [f"  row {row} is free" for row in step.finished]
        rows = {request.row: request.request_id for request in self.core._scheduler.running}
        for new in step.new:
            self.names[new.row] = rows[new.row]
            computed = f", {new.computed_tokens} computed" if new.computed_tokens else ""
            trace.append(
                f"  row {new.row} is {rows[new.row]}: {len(new.token_ids)} tokens{computed},"
                f" blocks {joined(new.block_ids)}"
            )
        for row, block_ids in step.grown:
            trace.append(f"  {self.names[row]} grows by blocks {joined(block_ids)}")
        for row, count, samples in zip(step.rows, step.token_counts, step.samples, strict=True):
            trace.append(f"  {self.names[row]} computes {count}{' and samples' * samples}")
        return trace

    def finish(self, words: list[str], options: dict[str, str]) -> list[str]:
        """finish: the workers answer the oldest step"""
        result = self.worker.execute(self.steps_in_flight.popleft())
        trace = []
        for frontend, message in self.core.finish_step(result, 0.0).items():
            trace += [f"{frontend} hears {describe(output)}" for output in message.outputs]
        return trace

    def steps(self, words: list[str], options: dict[str, str]) -> list[str]:
        """steps [COUNT]: schedule and finish, until there is no work"""
        trace: list[str] = []
        for _ in range(int(words[0]) if words else 1000):
            trace += self.schedule([], {})
            if not self.steps_in_flight:
                break
            trace += self.finish([], {})
            self.core.check_invariants()
        return trace

    def state(self, words: list[str], options: dict[str, str]) -> list[str]:
        """state: who runs, who waits, what is free"""
        scheduler = self.core._scheduler
        trace = [f"{place(request)} {request.request_id}" for request in scheduler.running]
        for request in scheduler.waiting.requests():
            trace.append(f"{place(request)} {request.request_id}")
        statistics = self.core.statistics()
        trace.append(f"{statistics.kv_blocks_free} of {statistics.kv_blocks} blocks are free")
        return trace


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


def key(request_id: str, options: dict[str, str]) -> RequestKey:
    """Names an attempt, the first unless the options say another."""
    return RequestKey(request_id, int(options.get("attempt", "1")))


def credit(word: str) -> int | None:
    """A credit; `end` is to the end."""
    return None if word == "end" else int(word)


def numbers(word: str) -> list[int]:
    """`1,2` as a list."""
    return [int(part) for part in word.split(",") if part]


def joined(items: list[int]) -> str:
    """The numbers with spaces."""
    return " ".join(map(str, items))


@pytest.mark.parametrize(
    "path", sorted(HERE.glob("*/*.txt")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_scenario(path: pathlib.Path) -> None:
    blocks = parse(path.read_text())
    interpreter = EngineCoreInterpreter()
    traces = [run_block(interpreter, block) if block.commands else [] for block in blocks]
    if os.environ.get(REWRITE):
        for block, trace in zip(blocks, traces, strict=True):
            block.trace = trace
        path.write_text(render(blocks))
        return
    for block, trace in zip(blocks, traces, strict=True):
        assert trace == block.trace, f"after {block.commands}"


@pytest.mark.parametrize(
    "path", sorted(HERE.glob("*/*.txt")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_scenario_is_in_the_form_that_rewriting_gives(path: pathlib.Path) -> None:
    assert render(parse(path.read_text())) == path.read_text()
