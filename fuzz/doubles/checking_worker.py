"""A worker without a model that checks every step it is given, for fuzzers, scenarios and tests.

Sans-IO: `execute(step)` is a function call. It keeps exactly what the step protocol lets a worker
keep (rows, their tokens, block tables) and a KV memory that holds, instead of keys and values, a
fingerprint of the tokens up to each position. Before it samples it reads the whole context back
through the block table: a block that was freed too early, given twice, or never computed shows as a
wrong fingerprint. Blocks may be shared as a prefix that is computed; none may write to one. A
token is a pure function of the tokens before it and of the sampling, so a preempted or replayed
request must go on with the very same tokens.
"""

import struct
import zlib
from collections.abc import Sequence

import attrs

from ...engine.embeddings import PLACEHOLDER_ID, rows_of
from ...engine.messages import AddRequest, FinishReason, RequestKey, RequestOutput
from ...engine.step_messages import NewRow, RowEmbeds, RowSampling, Step, StepResult
from ...transports.array import Array


def fingerprint(before: int, token_id: int) -> int:
    """Fingerprint of the tokens up to and including `token_id`, from that of those before."""
    return zlib.crc32(token_id.to_bytes(8, "little"), before)


def embedding_id(row: bytes) -> int:
    """Stand-in for a token whose embedding is given."""
    return zlib.crc32(row)


def fingerprint_of(token_ids: list[int]) -> int:
    """Fingerprint of a whole context."""
    return zlib.crc32(struct.pack(f"<{len(token_ids)}Q", *token_ids))


def sample_token(context: int, output_count: int, sampling: RowSampling, vocab_size: int) -> int:
    """The token after a context of this fingerprint, of which `output_count` tokens are output."""
    token_id = fingerprint(context, sampling.seed * 31 + sampling.choice) % vocab_size
    if output_count < sampling.min_tokens:
        while token_id in sampling.suppressed_until_min:
            token_id = (token_id + 1) % vocab_size
    return token_id


def expected_output(
    prompt: list[int],
    sampling: RowSampling,
    *,
    vocab_size: int,
    count: int,
    given: Sequence[int] = (),
) -> list[int]:
    """The first `count` output tokens of a request that has those `given`, stop rules aside."""
    output = list(given)
    context = fingerprint_of([*prompt, *output])
    while len(output) < count:
        output.append(sample_token(context, len(output), sampling, vocab_size))
        context = fingerprint(context, output[-1])
    return output


@attrs.define(eq=False)
class _Row:
    """Request as a worker knows it."""

    token_ids: list[int]
    prompt_tokens: int
    computed_tokens: int
    block_ids: list[int]
    sampling: RowSampling
    # The ids of its prompt are placeholders until their embeddings have come.
    is_embedded: bool


@attrs.define(eq=False)
class CheckingWorker:
    """Fails an assertion on any step that a real worker could not compute rightly."""

    kv_blocks: int
    block_tokens: int
    rows: int
    vocab_size: int

    number: int = attrs.field(default=0, init=False)
    # Rows that had one block in common, at most.
    shared_most: int = attrs.field(default=1, init=False)
    _rows: dict[int, _Row] = attrs.field(factory=dict, init=False)
    # {(block, slot): fingerprint of the context that ends there}; never cleared, as real memory.
    _kv: dict[tuple[int, int], int] = attrs.field(factory=dict, init=False)

    def successor(self, number: int, *, is_kept: bool) -> "CheckingWorker":
        """The worker in its place, for steps after `number`: it knows no row; `is_kept`: its KV
        memory is this one's, with whatever steps in flight have written."""
        new = CheckingWorker(self.kv_blocks, self.block_tokens, self.rows, self.vocab_size)
        new.number, new.shared_most = number, self.shared_most
        new._kv = self._kv if is_kept else {}
        return new

    def execute(self, step: Step) -> StepResult:
        """Compute one step, as `Step` says: forget, take, append, compute, sample."""
        assert step.number == self.number + 1
        self.number = step.number
        for row in step.finished:
            del self._rows[row]
        for new in step.new:
            self._take(new)
        for row, block_ids in step.grown:
            assert block_ids
            self._rows[row].block_ids += block_ids
        self._check_blocks()
        assert len(set(step.rows)) == len(step.rows) == len(step.token_counts)
        assert step.rows, "an empty step computes nothing"
        embeds = {given.row: given for given in step.embeds}
        assert len(embeds) == len(step.embeds)
        for row, count in zip(step.rows, step.token_counts, strict=True):
            self._embed(self._rows[row], count, embeds.pop(row, None))
        assert not embeds, "embeddings of a row that is not computed"
        sampled: list[tuple[int, int]] = []
        for row, count, samples in zip(step.rows, step.token_counts, step.samples, strict=True):
            token_id = self._compute(self._rows[row], count)
            assert samples == (token_id is not None)
            if token_id is not None:
                sampled.append((row, token_id))
        return StepResult(step.number, [row for row, _ in sampled], [token for _, token in sampled])

    def _take(self, new: NewRow) -> None:
        assert 0 <= new.row < self.rows
        assert new.row not in self._rows, "the row is in use"
        assert 0 < new.prompt_tokens <= len(new.token_ids)
        assert 0 <= new.computed_tokens < len(new.token_ids)
        self._rows[new.row] = row = _Row(
            list(new.token_ids),
            new.prompt_tokens,
            new.computed_tokens,
            list(new.block_ids),
            new.sampling,
            new.is_embedded,
        )
        assert not (new.is_embedded and new.computed_tokens), "placeholders name no block"
        assert self._has(row, new.computed_tokens), "these tokens were never computed for this row"

    def _embed(self, row: _Row, count: int, given: RowEmbeds | None) -> None:
        """Check that exactly the prompt tokens that are computed now have their embeddings."""
        tokens = min(count, row.prompt_tokens - row.computed_tokens) if row.is_embedded else 0
        assert (given is not None) == (tokens > 0)
        if given is None:
            return
        size, rest = divmod(len(given.data), tokens)
        assert rest == 0
        begin = row.computed_tokens
        row.token_ids[begin : begin + tokens] = [
            embedding_id(given.data[size * index : size * (index + 1)]) for index in range(tokens)
        ]

    def _has(self, row: _Row, count: int) -> bool:
        """Whether the KV of its first `count` tokens is in its blocks: a prefix hit."""
        context = 0
        for position, token_id in enumerate(row.token_ids[:count]):
            context = fingerprint(context, token_id)
            if self._kv.get(self._slot(row, position)) != context:
                return False
        return True

    def _compute(self, row: _Row, count: int) -> int | None:
        assert 0 < count <= len(row.token_ids) - row.computed_tokens
        self._write(row, row.computed_tokens, row.computed_tokens + count)
        row.computed_tokens += count
        if row.computed_tokens < len(row.token_ids):
            return None
        context = self._read(row)
        output_count = len(row.token_ids) - row.prompt_tokens
        token_id = sample_token(context, output_count, row.sampling, self.vocab_size)
        row.token_ids.append(token_id)
        return token_id

    def _slot(self, row: _Row, position: int) -> tuple[int, int]:
        return row.block_ids[position // self.block_tokens], position % self.block_tokens

    def _write(self, row: _Row, start: int, end: int) -> None:
        context = fingerprint_of(row.token_ids[:start])
        for position in range(start, end):
            context = fingerprint(context, row.token_ids[position])
            self._kv[self._slot(row, position)] = context

    def _read(self, row: _Row) -> int:
        context = 0
        for position, token_id in enumerate(row.token_ids):
            context = fingerprint(context, token_id)
            assert self._kv[self._slot(row, position)] == context, "another request's KV"
        return context

    def _check_blocks(self) -> None:
        """A block is in one table, or in several as what they begin with, and then full."""
        held: dict[int, list[tuple[int, bool]]] = {}
        for row in self._rows.values():
            for index, block_id in enumerate(row.block_ids):
                assert 0 <= block_id < self.kv_blocks
                is_full = (index + 1) * self.block_tokens <= row.computed_tokens
                held.setdefault(block_id, []).append((index, is_full))
        for holders in held.values():
            if len(holders) > 1:
                assert len({index for index, _ in holders}) == 1, "a block is in two tables"
                assert all(is_full for _, is_full in holders), "a block that grows is shared"
                self.shared_most = max(self.shared_most, len(holders))


# Size of embeddings; enough to tell tokens apart.
HIDDEN_SIZE = 2


@attrs.define(eq=False)
class WantedRequest:
    """Attempt at a request; `tokens` is the output that it must get in the end."""

    frontend: str
    add: AddRequest
    tokens: list[int]
    reason: FinishReason
    stop_token_id: int | None
    received: int = 0
    credit: int | None = None
    aborted: bool = False
    ended: bool = False

    @property
    def key(self) -> RequestKey:
        """Name of this attempt on the wire."""
        return RequestKey(self.add.request_id, self.add.attempt)

    @property
    def is_live(self) -> bool:
        """Whether more may come."""
        return not (self.aborted or self.ended)

    def hear(self, output: RequestOutput) -> None:
        """Like a ledger: exactly the next tokens, exactly one end."""
        assert self.is_live, "an output after the end"
        assert output.first_index == self.received
        end = self.received + len(output.token_ids)
        assert output.token_ids == self.tokens[self.received : end]
        replayed = len(self.add.output_token_ids)
        assert self.credit is None or end <= max(self.credit, replayed)
        self.received = end
        if output.finish_reason is not None:
            assert (output.finish_reason, output.stop_token_id) == (self.reason, self.stop_token_id)
            assert self.received == len(self.tokens)
            self.ended = True


def embedded(add: AddRequest) -> AddRequest:
    """The same with embeddings for the prompt's tokens, others for others."""
    shape = (len(add.prompt_token_ids), HIDDEN_SIZE)
    rows = b"".join(bytes([1, 2, 3, token_id]) for token_id in add.prompt_token_ids)
    ids = [PLACEHOLDER_ID] * shape[0]
    return attrs.evolve(add, prompt_token_ids=ids, prompt_embeds=Array("bfloat16", shape, rows))


def _prompt_of(add: AddRequest) -> list[int]:
    """Prompt as the checking worker takes it."""
    embeds = add.prompt_embeds
    if embeds is None:
        return add.prompt_token_ids
    rows = range(embeds.shape[0])
    return [embedding_id(bytes(rows_of(embeds, row, row + 1))) for row in rows]


def make_wanted(
    frontend: str, add: AddRequest, *, model_len: int, vocab_size: int
) -> WantedRequest:
    """Compute what must come after the tokens that a request has, by a slow and separate reading of
    the stop rules."""
    sampling = add.sampling
    ends = [] if sampling.ignore_eos else add.eos_token_ids
    row_sampling = RowSampling(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        seed=sampling.seed or 0,
        choice=add.choice,
        min_tokens=sampling.min_tokens,
        suppressed_until_min=sorted({*ends, *sampling.stop_token_ids}),
    )
    count = model_len - len(add.prompt_token_ids)
    if sampling.max_tokens is not None:
        count = min(count, sampling.max_tokens)
    given = add.output_token_ids
    tokens = expected_output(
        _prompt_of(add), row_sampling, vocab_size=vocab_size, count=count, given=given
    )
    for number, token_id in enumerate(tokens, 1):
        if number < sampling.min_tokens:
            continue
        if token_id in ends:
            return WantedRequest(frontend, add, tokens[:number], FinishReason.STOP, None)
        if token_id in sampling.stop_token_ids:
            return WantedRequest(frontend, add, tokens[:number], FinishReason.STOP, token_id)
    return WantedRequest(frontend, add, tokens, FinishReason.LENGTH, None)
