"""The rows that a worker holds, and what one step computes of them.

Sans-IO: plain lists. A step is a difference: rows are forgotten, taken in and grown, then some of
them compute their next tokens. The engine core keeps the truth; a step that contradicts what is
held is refused whole, before anything is changed, because computing it would mix up requests.

    token_ids   [ prompt ........ | output so far .... ]
                0          prompt_tokens        len(token_ids)
                [ computed ............ | next count tokens | rest ]
"""

from collections.abc import Iterable, Sequence

import attrs

from ...transports.array import ITEM_BYTES
from ..embeddings import DTYPES
from ..step_messages import NewRow, RowSampling, Step
from .step_inputs import EmbedSpan, PromptSpan, Sampling, StepInputs


@attrs.frozen
class StepInconsistent(Exception):
    """The step contradicts the rows held; an error of the engine core, and the step is not run."""

    number: int
    reason: str

    def __str__(self) -> str:
        return f"step {self.number} {self.reason}"


@attrs.define(eq=False)
class HeldRow:
    """Request of a row. 0 <= computed <= len(token_ids); the output begins at `prompt_tokens`."""

    token_ids: list[int]
    prompt_tokens: int
    computed: int
    block_ids: list[int]
    sampling: RowSampling
    # {token of prompt or output: times in the output}, kept where a penalty asks for it.
    seen: dict[int, int] | None
    # The ids of its prompt are placeholders.
    is_embedded: bool = False
    # `bad_words` of one token, and the others by the token before their last: hundreds of them are
    # looked at for each token.
    _bad_alone: list[int] = attrs.field(factory=list, init=False)
    _bad_after: dict[int, list[list[int]]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        for word in self.sampling.bad_words:
            if len(word) == 1:
                self._bad_alone.append(word[0])
            else:
                self._bad_after.setdefault(word[-2], []).append(word)

    @property
    def output_tokens(self) -> int:
        """How many tokens of `token_ids` are output, which is the index of the next one."""
        return len(self.token_ids) - self.prompt_tokens

    def forbidden(self) -> list[int]:
        """The ids that min_tokens and bad words forbid for the next token."""
        sampling, tokens = self.sampling, self.token_ids
        forbidden = self._bad_alone.copy()
        if sampling.min_tokens > len(tokens) - self.prompt_tokens:
            forbidden += sampling.suppressed_until_min
        for word in self._bad_after.get(tokens[-1], ()):
            begin = len(tokens) - len(word) + 1
            if begin >= self.prompt_tokens and tokens[begin:] == word[:-1]:
                forbidden.append(word[-1])
        return forbidden

    def may_forbid(self) -> bool:
        """Whether `forbidden` may name any, now or later."""
        return bool(self.sampling.bad_words) or self.output_tokens < self.sampling.min_tokens

    def extend(self, tokens: Sequence[int]) -> None:
        """Take the tokens that were sampled in successive steps."""
        self.token_ids.extend(tokens)
        if self.seen is not None:
            for token in tokens:
                self.seen[token] = self.seen.get(token, 0) + 1


@attrs.define(eq=False)
class InputBatch:
    """Rows held, by number. Numbers are below `rows_max`, block ids below `blocks`.

    `hidden_size` is that of embeddings; 0: rows have none.
    """

    rows_max: int
    blocks: int
    block_tokens: int
    # Token ids are below this; checked because an embedding looked up beyond its end may crash.
    vocab_size: int
    hidden_size: int = 0
    rows: dict[int, HeldRow] = attrs.field(factory=dict, init=False)
    # {row: why it fails as soon as it is to sample}, found when its prompt was scored.
    failures: dict[int, str] = attrs.field(factory=dict, init=False)
    # Rows held whose prompts are embeddings.
    embedded: set[int] = attrs.field(factory=set, init=False)

    def take_step(self, step: Step) -> StepInputs:
        """Apply the step's differences and say what to compute.

        Raises `StepInconsistent` and changes nothing. `finish_step` has to follow with the tokens.
        """
        self.apply(step)
        return self.inputs(step)

    def apply(self, step: Step) -> None:
        """Apply the step's differences; as `take_step`, of which it is the first half."""
        self._check(step)
        for row in step.finished:
            del self.rows[row]
            self.failures.pop(row, None)
            self.embedded.discard(row)
        for new in step.new:
            if new.is_embedded:
                self.embedded.add(new.row)
            self.rows[new.row] = HeldRow(
                token_ids=list(new.token_ids),
                prompt_tokens=new.prompt_tokens,
                computed=new.computed_tokens,
                block_ids=list(new.block_ids),
                sampling=new.sampling,
                seen=_count_seen(new) if _has_penalty(new.sampling) else None,
                is_embedded=new.is_embedded,
            )
        self.grow(step)

    def check_grown(self, step: Step) -> None:
        """Raises `StepInconsistent` where rows grow that are not held, or by impossible blocks."""
        for row, block_ids in step.grown:
            if row not in self.rows:
                raise StepInconsistent(step.number, f"grows row {row}, which is not held")
            self._check_blocks(step.number, block_ids)

    def grow(self, step: Step) -> None:
        """Append the blocks that rows have grown by, which have been checked."""
        for row, block_ids in step.grown:
            self.rows[row].block_ids.extend(block_ids)

    def finish_step(self, step: Step, tokens: Iterable[int]) -> None:
        """Note what was computed and, in the order of `StepInputs.samplings`, sampled.

        A row that failed has a token, too, that means nothing.
        """
        sampled = iter(tokens)
        for row, count, samples in zip(step.rows, step.token_counts, step.samples, strict=True):
            held = self.rows[row]
            held.computed += count
            if samples:
                held.extend((next(sampled),))

    def inputs(self, step: Step) -> StepInputs:
        """Inputs of a step whose differences have been applied."""
        inputs = StepInputs([], [], [], [], [])
        embeds = {given.row: given for given in step.embeds}
        for row, count, samples in zip(step.rows, step.token_counts, step.samples, strict=True):
            held = self.rows[row]
            begin = held.computed
            if count == 1:  # a decode row, as most are
                inputs.token_ids.append(held.token_ids[begin])
                inputs.positions.append(begin)
                inputs.rows.append(row)
            else:
                inputs.token_ids.extend(held.token_ids[begin : begin + count])
                inputs.positions.extend(range(begin, begin + count))
                inputs.rows.extend([row] * count)
            if row in embeds:
                first, given = len(inputs.token_ids) - count, embeds[row]
                inputs.embeds.append(EmbedSpan(first, given.dtype, given.data))
            if held.sampling.prompt_logprobs is not None and begin + 1 < held.prompt_tokens:
                inputs.prompt_spans.append(_prompt_span(inputs, row, held, count))
            if samples:
                last = len(inputs.token_ids) - 1
                inputs.samplings.append(Sampling(row, last, held.sampling, held.output_tokens))
        return inputs

    def _check(self, step: Step) -> None:
        # Lengths after the differences: {row: (tokens, computed, blocks)}.
        after = {
            row: (len(held.token_ids), held.computed, len(held.block_ids))
            for row, held in self.rows.items()
        }
        for row in step.finished:
            if after.pop(row, None) is None:
                raise StepInconsistent(step.number, f"finishes row {row}, which is not held")
        for new in step.new:
            self._check_new(step.number, new, held=new.row in after)
            after[new.row] = (len(new.token_ids), new.computed_tokens, len(new.block_ids))
        for row, block_ids in step.grown:
            if row not in after:
                raise StepInconsistent(step.number, f"grows row {row}, which is not held")
            self._check_blocks(step.number, block_ids)
            tokens, computed, blocks = after[row]
            after[row] = (tokens, computed, blocks + len(block_ids))
        for new in step.new:
            if new.computed_tokens > after[new.row][2] * self.block_tokens:
                raise StepInconsistent(step.number, f"row {new.row}: computed more than its blocks")
        self._check_work(step, after)
        if self.embedded or step.embeds or any(new.is_embedded for new in step.new):
            self._check_embeds(step)

    def _check_new(self, number: int, new: NewRow, *, held: bool) -> None:
        if held or not 0 <= new.row < self.rows_max:
            raise StepInconsistent(number, f"takes row {new.row}, which is held or out of range")
        if not 0 <= new.computed_tokens <= len(new.token_ids):
            raise StepInconsistent(number, f"row {new.row}: computed_tokens exceed its tokens")
        if not 0 < new.prompt_tokens <= len(new.token_ids):
            raise StepInconsistent(number, f"row {new.row}: prompt_tokens exceed its tokens")
        if min(new.token_ids) < 0 or max(new.token_ids) >= self.vocab_size:
            raise StepInconsistent(number, f"row {new.row}: a token id is out of the vocabulary")
        for name, token_ids in _named_ids(new.sampling):
            if any(not 0 <= token_id < self.vocab_size for token_id in token_ids):
                raise StepInconsistent(
                    number, f"row {new.row}: {name} has an id out of the vocabulary"
                )
        biased = [token_id for token_id, _ in new.sampling.logit_bias]
        if len(set(biased)) != len(biased):
            raise StepInconsistent(number, f"row {new.row}: logit_bias names an id twice")
        if not all(new.sampling.bad_words):
            raise StepInconsistent(number, f"row {new.row}: bad_words has a word without tokens")
        self._check_blocks(number, new.block_ids)

    def _check_blocks(self, number: int, block_ids: list[int]) -> None:
        if any(not 0 <= block_id < self.blocks for block_id in block_ids):
            raise StepInconsistent(number, f"names a block beyond {self.blocks - 1}")

    def _check_work(self, step: Step, after: dict[int, tuple[int, int, int]]) -> None:
        if not len(step.rows) == len(step.token_counts) == len(step.samples):
            raise StepInconsistent(step.number, "has lists of different lengths")
        if len(set(step.rows)) != len(step.rows):
            raise StepInconsistent(step.number, "computes a row twice")
        for row, count, samples in zip(step.rows, step.token_counts, step.samples, strict=True):
            if row not in after:
                raise StepInconsistent(step.number, f"computes row {row}, which is not held")
            tokens, computed, blocks = after[row]
            end = computed + count
            if count < 1 or end > tokens or (samples and end != tokens):
                raise StepInconsistent(
                    step.number, f"row {row}: {computed} + {count} of {tokens} tokens do not fit"
                )
            if end > blocks * self.block_tokens:
                raise StepInconsistent(step.number, f"row {row}: {end} tokens exceed its blocks")

    def _check_embeds(self, step: Step) -> None:
        """Each row has embeddings of just those prompt tokens that are placeholders."""
        new = {row.row: row for row in step.new}
        needed: dict[int, int] = {}
        for row, count in zip(step.rows, step.token_counts, strict=True):
            if row in new:
                is_embedded = new[row].is_embedded
                left = new[row].prompt_tokens - new[row].computed_tokens
            else:
                held = self.rows[row]
                is_embedded, left = held.is_embedded, held.prompt_tokens - held.computed
            if is_embedded and left > 0:
                needed[row] = min(count, left)
        if sorted(given.row for given in step.embeds) != sorted(needed):
            raise StepInconsistent(
                step.number, f"brings embeddings for other rows than {[*needed]}"
            )
        for given in step.embeds:
            if given.dtype not in DTYPES or self.hidden_size == 0:
                raise StepInconsistent(step.number, f"row {given.row}: {given.dtype} is not taken")
            if len(given.data) != needed[given.row] * self.row_bytes(given.dtype):
                reason = f"row {given.row}: {len(given.data)} bytes of embeddings"
                raise StepInconsistent(step.number, f"{reason} for {needed[given.row]} tokens")

    def row_bytes(self, dtype: str) -> int:
        """Bytes of one token's embedding."""
        return self.hidden_size * ITEM_BYTES[dtype]

    def check_invariants(self) -> None:
        """Raise `AssertionError` if a row is impossible."""
        assert self.embedded == {row for row, held in self.rows.items() if held.is_embedded}
        assert self.failures.keys() <= self.rows.keys()
        for row, held in self.rows.items():
            assert 0 <= row < self.rows_max
            assert 0 <= held.computed <= len(held.token_ids)
            assert held.computed <= len(held.block_ids) * self.block_tokens
            assert held.output_tokens >= 0
            if held.seen is not None:
                known = held.token_ids[held.prompt_tokens if held.is_embedded else 0 :]
                assert held.seen.keys() == set(known)
                assert sum(held.seen.values()) == held.output_tokens


def _has_penalty(sampling: RowSampling) -> bool:
    return (
        sampling.repetition_penalty != 1
        or sampling.frequency_penalty != 0
        or sampling.presence_penalty != 0
    )


def _count_seen(new: NewRow) -> dict[int, int]:
    """A prompt of embeddings has no known tokens: the output counts alone."""
    seen = {} if new.is_embedded else dict.fromkeys(new.token_ids, 0)
    for token in new.token_ids[new.prompt_tokens :]:
        seen[token] = seen.get(token, 0) + 1
    return seen


def _prompt_span(inputs: StepInputs, row: int, held: HeldRow, count: int) -> PromptSpan:
    """Span of the row's `count` tokens, which are the last ones in `inputs`."""
    assert held.sampling.prompt_logprobs is not None
    first = held.computed + 1
    end = min(held.computed + count + 1, held.prompt_tokens)
    return PromptSpan(
        row=row,
        token_index=len(inputs.token_ids) - count,
        first=first,
        targets=held.token_ids[first:end],
        alternatives=held.sampling.prompt_logprobs,
    )


def _named_ids(sampling: RowSampling) -> Iterable[tuple[str, Iterable[int]]]:
    yield "suppressed_until_min", sampling.suppressed_until_min
    yield "logit_bias", (token_id for token_id, _ in sampling.logit_bias)
    yield "allowed_token_ids", sampling.allowed_token_ids
    for sequence in sampling.bad_words:
        yield "bad_words", sequence
