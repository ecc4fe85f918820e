"""The engine core under any order of messages and steps, against a model of what must come out.

The model knows each request's whole output beforehand (the checking worker's tokens are a pure
function of the prompt and the sampling), so it demands the exact next token, the right end, once,
and nothing after an abort; whatever was preempted, replayed or sent again in between.
"""

from collections import deque

import attrs
import hypothesis.strategies as st
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from triolet.engine.config import EngineSettings
from triolet.engine.core.engine_core import EngineCore
from triolet.engine.messages import AddRequest, Grant, LiveRequest, RequestOutput
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.step_messages import Step, WorkerReady
from triolet.fuzz.doubles.checking_worker import CheckingWorker
from triolet.fuzz.doubles.wanted_request import WantedRequest, make_wanted

VOCAB = 9  # small, so that stop tokens are met often
MODEL_LEN = 20
BLOCK_TOKENS = 3
FRONTENDS = ("f0", "f1")
# Far more than a request's tokens times the requests that one example can add.
STEPS_TO_THE_END_MAX = 3000

NO_STOPS: tuple[list[int], list[int], bool] = ([], [], True)

token_ids = st.integers(0, VOCAB - 1)
# Many begin alike, so that there are blocks to share.
prompts = st.builds(
    lambda common, own: (list(range(common)) + own)[:9],
    st.sampled_from([0, 3, 6, 7]),
    st.lists(token_ids, min_size=1, max_size=9),
)
token_lists = st.lists(token_ids, max_size=2)


class EngineCoreMachine(RuleBasedStateMachine):
    requests: Bundle[WantedRequest] = Bundle("requests")

    @initialize(
        kv_blocks=st.integers(2, 9),
        max_num_seqs=st.integers(1, 4),
        max_num_batched_tokens=st.integers(1, 9),
        steps_in_flight=st.sampled_from([1, 2, 2]),
        prefix_cache=st.booleans(),
    )
    def start(
        self,
        *,
        kv_blocks: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        steps_in_flight: int,
        prefix_cache: bool,
    ) -> None:
        engine_settings = EngineSettings(
            model="none",
            block_tokens=BLOCK_TOKENS,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            steps_in_flight=steps_in_flight,
            prefix_cache=prefix_cache,
        )
        ready = WorkerReady(
            kv_blocks=kv_blocks,
            max_model_len=MODEL_LEN,
            vocab_size=VOCAB,
            numerics_id="none",
            bitwise=True,
        )
        self.core = EngineCore(engine_settings, ready)
        self.worker = CheckingWorker(kv_blocks, BLOCK_TOKENS, max_num_seqs, VOCAB)
        # In flight, the oldest first; bounded by the core.
        self.steps: deque[Step] = deque()
        # {(frontend, request id): its newest attempt}
        self.wanted: dict[tuple[str, str], WantedRequest] = {}
        self.count = self.attempts = 0
        self.now = 0.0

    # ---- what frontends do

    @rule(
        target=requests,
        prompts=st.lists(prompts, min_size=1, max_size=5),
        max_tokens=st.none() | st.integers(3, 16),
        credit=st.none() | st.integers(0, 6),
        priority=st.integers(-1, 1),
    )
    def add_burst(
        self,
        prompts: list[list[int]],
        max_tokens: int | None,
        credit: int | None,
        priority: int,
    ) -> MultipleResults[WantedRequest]:
        """Several at once that run long, so that they have to fight for blocks."""
        return multiple(
            *(
                self.make_add(
                    "f0", prompt, (max_tokens, 0), NO_STOPS, credit=credit, priority=priority
                )
                for prompt in prompts
            )
        )

    @rule(
        target=requests,
        prompt=prompts,
        choices=st.integers(2, 4),
        credit=st.none() | st.integers(0, 6),
    )
    def add_choices(
        self, prompt: list[int], choices: int, credit: int | None
    ) -> MultipleResults[WantedRequest]:
        """One prompt that is computed once, if whoever computes it is left to do so."""
        parent = f"p{self.count}"
        return multiple(
            *(
                self.make_add(
                    "f0", prompt, (None, 0), NO_STOPS, credit=credit, sibling=(parent, choice)
                )
                for choice in range(choices)
            )
        )

    @rule(
        target=requests,
        frontend=st.sampled_from(FRONTENDS),
        prompt=prompts,
        limits=st.tuples(st.none() | st.integers(1, 12), st.integers(0, 4)),
        stops=st.tuples(token_lists, token_lists, st.booleans()),
        credit=st.none() | st.integers(0, 6),
        remote=st.booleans(),
    )
    def add(
        self,
        *,
        frontend: str,
        prompt: list[int],
        limits: tuple[int | None, int],
        stops: tuple[list[int], list[int], bool],
        credit: int | None,
        remote: bool,
    ) -> WantedRequest:
        return self.make_add(frontend, prompt, limits, stops, credit=credit, remote=remote)

    def make_add(
        self,
        frontend: str,
        prompt: list[int],
        limits: tuple[int | None, int],
        stops: tuple[list[int], list[int], bool],
        *,
        credit: int | None,
        remote: bool = False,
        priority: int = 0,
        sibling: tuple[str, int] = ("", 0),
    ) -> WantedRequest:
        self.count += 1
        max_tokens, min_tokens = limits
        eos, stop_token_ids, ignore_eos = stops
        if max_tokens is not None:
            min_tokens = min(min_tokens, max_tokens)
        prompt = prompt[: self.core.max_model_len - 1]
        add = AddRequest(
            request_id=f"r{self.count}",
            attempt=self.next_attempt(),
            prompt_token_ids=prompt,
            sampling=SamplingParams(
                max_tokens=max_tokens,
                min_tokens=min_tokens,
                seed=self.count,
                stop_token_ids=tuple(stop_token_ids),
                ignore_eos=ignore_eos,
            ),
            eos_token_ids=eos,
            credit=credit,
            waits_for_remote_kv=remote,
            priority=priority,
            parent=sibling[0],
            choice=sibling[1],
            in_columns=self.count % 2 == 0,
            merge_s=(0.0, 0.3, 1.0)[self.count % 3],
        )
        return self.send(self.want(frontend, add))

    @rule(target=requests, request=requests, keep=st.integers(0, 20))
    def replay(self, request: WantedRequest, keep: int) -> WantedRequest:
        """A newer attempt, with some of the tokens as output already; also of what has ended."""
        newest = self.wanted[request.frontend, request.add.request_id]
        add = attrs.evolve(
            newest.add,
            attempt=self.next_attempt(),
            output_token_ids=newest.tokens[:keep],
            credit=newest.credit,
        )
        newest.aborted = True
        return self.send(self.want(request.frontend, add))

    def want(self, frontend: str, add: AddRequest) -> WantedRequest:
        return make_wanted(frontend, add, model_len=self.core.max_model_len, vocab_size=VOCAB)

    def next_attempt(self) -> int:
        """As a ledger numbers them: none comes twice."""
        self.attempts += 1
        return self.attempts

    def send(self, wanted: WantedRequest) -> WantedRequest:
        wanted.received = len(wanted.add.output_token_ids)
        wanted.credit = wanted.add.credit
        self.wanted[wanted.frontend, wanted.add.request_id] = wanted
        self.core.add(wanted.frontend, wanted.add)
        return wanted

    @rule(target=requests, request=consumes(requests))
    def abort(self, request: WantedRequest) -> MultipleResults[WantedRequest]:
        self.core.abort(request.frontend, [request.key])
        request.aborted = True
        newest = self.wanted[request.frontend, request.add.request_id]
        return multiple(*([newest] if newest is not request else []))

    @rule(request=requests, credit=st.none() | st.integers(0, 12))
    def grant(self, request: WantedRequest, credit: int | None) -> None:
        if credit is None or request.credit is None:
            request.credit = None
        else:
            request.credit = max(request.credit, credit)
        self.core.grant(
            request.frontend, [Grant(request.key.request_id, request.key.attempt, credit)]
        )

    @rule(request=requests, computed_tokens=st.integers(0, 20))
    def remote_kv_arrived(self, request: WantedRequest, computed_tokens: int) -> None:
        if request.is_live and request.waits_for_kv:
            request.waits_for_kv = False
            tokens = request.add.prompt_token_ids + request.add.output_token_ids
            self.worker.stage_kv(tokens[: min(computed_tokens, len(tokens) - 1)])
        self.core.remote_kv_arrived(request.frontend, request.key, computed_tokens)

    # These two leave little to go on with, so they come late.
    @precondition(lambda self: self.count % 4 == 3)
    @rule(frontend=st.sampled_from(FRONTENDS), data=st.data())
    def resync(self, frontend: str, data: st.DataObject) -> None:
        """The link was cut: some of what was heard is lost, and some is no longer wanted."""
        mine = [w for w in self.wanted.values() if w.frontend == frontend and not w.aborted]
        live = []
        for wanted in mine:
            if data.draw(st.booleans()):
                wanted.received = data.draw(st.integers(0, wanted.received))
                wanted.ended = False
                key = wanted.key
                live.append(
                    LiveRequest(key.request_id, key.attempt, wanted.received, wanted.credit)
                )
            else:
                wanted.aborted = True
        outputs, unknown = self.core.resync(frontend, live)
        assert not unknown, "so few are always remembered"
        for output in outputs:
            self.hear(frontend, output)
        for wanted in mine:
            request = self.core._store.find_attempt(
                frontend, wanted.key.request_id, wanted.key.attempt
            )
            assert wanted.is_live == (request is not None)
            assert request is None or request.output_count == wanted.received

    @precondition(lambda self: self.count % 8 == 7)
    @rule(frontend=st.sampled_from(FRONTENDS))
    def forget_frontend(self, frontend: str) -> None:
        self.core.forget_frontend(frontend)
        for wanted in self.wanted.values():
            if wanted.frontend == frontend:
                wanted.aborted = True

    # ---- what the engine does

    @rule()
    def schedule(self) -> None:
        scheduler = self.core._scheduler
        runnable = [r for r in scheduler.running if r.is_runnable]
        preemptions = scheduler.preemptions
        has_work = self.core.has_work()
        self.now += 0.1
        step = self.core.schedule(self.now)
        if step is None:
            assert self.steps or not (has_work or runnable)
            return
        assert has_work
        self.steps.append(step)
        served = [r for r in scheduler.running if r.row in step.rows]
        watched = any(r.is_watched for r in served)
        budget = scheduler.max_num_batched_tokens if watched else scheduler.unwatched_tokens
        assert sum(step.token_counts) <= budget
        if runnable and len(self.steps) == 1:
            assert runnable[0].row in step.rows, "the oldest that can run does"
        if len(self.steps) == 1 and scheduler.preemptions == preemptions:
            assert {r.row for r in runnable} <= set(step.rows), "nobody is left out"
        new_rows = {new.row for new in step.new}
        order = scheduler.waiting.order
        admitted = [order(r) for r in scheduler.running if r.row in new_rows]
        first = scheduler.waiting.first()
        if admitted and first is not None:
            assert max(admitted) < order(first), "overtaken"

    @rule()
    @precondition(lambda self: bool(self.steps))
    def finish_step(self) -> None:
        result = self.worker.execute(self.steps.popleft())
        messages = self.core.finish_step(result, self.now)
        overdue = self.core._windows.take_due(self.now)
        assert not overdue, "waits beyond the end of its window"
        for frontend, message in messages.items():
            assert isinstance(frontend, str)
            assert message.outputs or message.attempts
            by_attempt = {wanted.add.attempt: wanted for wanted in self.wanted.values()}
            rows = zip(message.attempts, message.indices, message.token_ids, strict=True)
            for attempt, index, token_id in rows:
                wanted = by_attempt[attempt]
                assert wanted.add.in_columns
                output = RequestOutput(
                    request_id=wanted.add.request_id,
                    attempt=attempt,
                    first_index=index,
                    token_ids=[token_id],
                )
                self.hear(frontend, output)
            for output in message.outputs:
                self.hear(frontend, output)

    @rule(count=st.integers(1, 12))
    def run(self, count: int) -> None:
        """Some steps without a word in between: most of an engine's life."""
        for _ in range(count):
            self.schedule()
            if self.steps:
                self.finish_step()

    @invariant()
    def consistent(self) -> None:
        if not hasattr(self, "core"):
            return
        for frontend, message in self.core.take_outputs().items():
            assert isinstance(frontend, str)
            for output in message.outputs:
                self.hear(frontend, output)
        self.core.check_invariants()

    def hear(self, frontend: str, output: RequestOutput) -> None:
        wanted = self.wanted[frontend, output.request_id]
        assert wanted.add.attempt == output.attempt
        wanted.hear(output)

    def teardown(self) -> None:
        """With credit for everybody, everybody ends; then nothing is held."""
        if not hasattr(self, "core"):
            return
        for wanted in self.wanted.values():
            if wanted.is_live:
                self.grant(wanted, None)
                self.core.remote_kv_failed(wanted.frontend, wanted.key)
        for _ in range(STEPS_TO_THE_END_MAX):
            self.schedule()
            if not self.steps:
                break
            self.finish_step()
            self.consistent()
        assert all(not wanted.is_live for wanted in self.wanted.values())
        statistics = self.core.statistics()
        assert statistics.kv_blocks_free == statistics.kv_blocks
        assert self.core.unfinished_count() == 0


TestEngineCore = EngineCoreMachine.TestCase
pytestmark = pytest.mark.slow
# Not shrunk: that takes minutes here. The trace of a failure is readable as it is.
TestEngineCore.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
