"""Step builder: the message of a step, row by row, and the pool of rows.

Sans-IO: lists and numbers. `scheduler` decides which request computes how much; here it becomes a
`Step` for the workers, and a `ScheduledStep` that says which request each row is of.
"""

import heapq

import attrs

from ...transports.array import Array
from ..embeddings import rows_of
from ..step_messages import NewRow, RowEmbeds, Step
from .request import Request


@attrs.define(eq=False)
class ScheduledStep:
    """A step and its requests: `requests[i]` computes in `step.rows[i]`."""

    step: Step
    requests: list[Request]
    # Requests whose row samples a token, in the order of the rows.
    sampling: list[Request]
    # Requests that sample under a grammar, in the order of `step.masked`.
    masked: list[Request] = attrs.field(factory=list)
    # Tokens of rows that compute more than one: what its time depends on.
    chunk_tokens: int = 0
    # Requests that were admitted with it, and those without a token of this engine before it.
    begun: list[Request] = attrs.field(factory=list)
    prefills: list[Request] = attrs.field(factory=list)
    # When it was scheduled, and whether its mask has been taken; the engine core's.
    began_s: float = 0.0
    mask_taken: bool = False

    @property
    def sampling_rows(self) -> list[int]:
        """The rows of `sampling`."""
        if len(self.sampling) == len(self.requests):
            return self.step.rows
        return [request.row for request in self.sampling]

    def begin(self, now: float) -> None:
        """Note when the step was scheduled."""
        self.began_s = now
        for request in self.begun:
            request.began_s = min(request.began_s, now)

    def note_prefills(self, now: float) -> None:
        """Note the prefill times of a complete step. (Not counted: a last step of one token.)"""
        for request in self.prefills:
            request.prefill_s = now - request.began_s

    def check_invariants(self, tokens_max: int, tokens_max_alone: int) -> None:
        """Fails an assertion if it has more tokens than it may; `Scheduler` has both bounds."""
        if any(request.is_interactive for request in self.requests):
            tokens_max_alone = 0
        assert self.chunk_tokens <= sum(self.step.token_counts) <= max(tokens_max, tokens_max_alone)
        assert all(count > 0 for count in self.step.token_counts)


@attrs.define(eq=False)
class StepBuilder:
    """A step that is being built; `budget` is what is left of it, in tokens."""

    budget: int
    finished: list[int] = attrs.field(factory=list)
    new: list[NewRow] = attrs.field(factory=list)
    grown: list[tuple[int, list[int]]] = attrs.field(factory=list)
    token_counts: list[int] = attrs.field(factory=list)
    samples: list[bool] = attrs.field(factory=list)
    requests: list[Request] = attrs.field(factory=list)
    sampling: list[Request] = attrs.field(factory=list)
    masked: list[Request] = attrs.field(factory=list)
    tokens: int = 0
    chunk_tokens: int = 0
    embeds: list[RowEmbeds] = attrs.field(factory=list)
    begun: list[Request] = attrs.field(factory=list)
    prefills: list[Request] = attrs.field(factory=list)

    def begin_row(self, request: Request) -> None:
        """The request was just admitted: all that a worker needs to know of it."""
        new_row = NewRow(
            row=request.row,
            token_ids=request.token_ids.copy(),
            prompt_tokens=request.prompt_tokens,
            computed_tokens=request.computed_tokens,
            block_ids=request.block_ids.copy(),
            sampling=request.row_sampling(),
            is_embedded=request.prompt_embeds is not None,
        )
        self.new.append(new_row)
        self.begun.append(request)

    def compute(self, request: Request, count: int) -> None:
        """The request's row computes its next `count` tokens, and samples if these are its last."""
        self.budget -= count
        self.requests.append(request)
        self.token_counts.append(count)
        self.tokens += count
        if count > 1:
            self.chunk_tokens += count
        if request.prompt_embeds is not None:
            self._embed(request, request.prompt_embeds, count)
        scheduled_tokens = request.scheduled_tokens = request.scheduled_tokens + count
        samples = scheduled_tokens == request.total_tokens
        self.samples.append(samples)
        if request.total_tokens == request.prompt_tokens + request.replayed_tokens:
            self.prefills.append(request)
        if samples:
            request.total_tokens += 1
            self.sampling.append(request)
            if request.grammar is not None:
                self.masked.append(request)

    def decode(self, requests: list[Request]) -> None:
        """Add requests that decode, each with its last token alone; else as `compute`."""
        self.budget -= len(requests)
        self.tokens += len(requests)
        self.requests += requests
        self.sampling += requests
        self.token_counts += [1] * len(requests)
        self.samples += [True] * len(requests)
        for request in requests:
            if request.prompt_embeds is not None:
                self._embed(request, request.prompt_embeds, 1)
            tokens = request.scheduled_tokens + 1
            request.scheduled_tokens = tokens
            request.total_tokens = tokens + 1
            if request.grammar is not None:
                self.masked.append(request)

    def _embed(self, request: Request, embeds: Array, count: int) -> None:
        """Add the embeddings of those of the row's next `count` tokens that are its prompt's."""
        begin = request.scheduled_tokens
        end = min(begin + count, request.prompt_tokens)
        if begin < end:
            data = bytes(rows_of(embeds, begin, end))
            self.embeds.append(RowEmbeds(request.row, embeds.dtype, data))

    def build(self, number: int) -> ScheduledStep:
        """The step, with this number."""
        step = Step(
            number=number,
            finished=self.finished,
            new=self.new,
            grown=self.grown,
            rows=[request.row for request in self.requests],
            token_counts=self.token_counts,
            samples=self.samples,
            masked=[request.row for request in self.masked],
            embeds=self.embeds,
        )
        return ScheduledStep(
            step,
            self.requests,
            self.sampling,
            self.masked,
            self.chunk_tokens,
            self.begun,
            self.prefills,
        )


@attrs.define(eq=False)
class RowPool:
    """`rows` rows numbered from 0: the worker's places for requests.

    The worker forgets a row when a step names it in `Step.finished`, and only then may the row be
    taken again; so a row passes from taken through *released* (to be named) to free. The smallest
    free number is taken, which keeps the worker's batch dense.
    """

    rows: int = attrs.field(validator=attrs.validators.ge(1))

    # Heap of free rows. Each row is in exactly one of the three.
    _free: list[int] = attrs.field(init=False)
    _released: list[int] = attrs.field(factory=list, init=False)
    _taken: set[int] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.rows))

    @property
    def available(self) -> int:
        """Rows that are free, or will be once the next step has named them."""
        return self.rows - len(self._taken)

    def take(self) -> int:
        """The smallest free row. The caller knows that there is one."""
        row = heapq.heappop(self._free)
        self._taken.add(row)
        return row

    def release(self, row: int) -> None:
        """Release a row that its request has left; the next step must name it."""
        self._taken.remove(row)
        self._released.append(row)

    def free_released(self) -> list[int]:
        """Rows for the next `Step.finished`: with this they are free, also for the same step."""
        if not self._released:
            return []
        released, self._released = self._released, []
        for row in released:
            heapq.heappush(self._free, row)
        return released

    def check_invariants(self, taken: list[int]) -> None:
        """`taken`: the rows that requests hold. Fails if a row is lost or given twice."""
        assert len(set(taken)) == len(taken)
        assert set(taken) == self._taken
        assert sorted([*self._free, *self._released, *self._taken]) == list(range(self.rows))
