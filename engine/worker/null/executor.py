"""The null executor computes nothing: tokens are a hash, steps take as long as the settings say.

For tests, demos and chaos: all of the engine but the arithmetic, in any number of workers, with
token streams that are the same wherever and however often a request runs. A token depends on the
seed, the output position and the previous token, so a stream that is continued with a token missing
or repeated shows it. Logprobs are a hash of the token's index and its id. Must not import torch.
"""

import hashlib
import pathlib
import struct
import zlib
from collections.abc import Sequence

import attrs

from ...config import EngineSettings
from ...control_messages import BootPhase
from ...model_config.config import load_model_limits
from ...model_config.folder import CONFIG_FILE
from ...step_messages import Mask, RowLogprobs, Step, StepResult, WorkerReady
from ..executor_interface import Pause, Progress, WaitMask
from ..input_batch import InputBatch
from ..kv_plan import plan_kv
from ..step_inputs import Sampling, StepInputs

# Low ids are special tokens in most vocabularies; an end of sequence by accident would end tests.
SPECIAL_IDS = 8
REVISION = 1
# 2**64 / the golden ratio: spreads the numbers of choices, which draw differently, over 64 bits.
_CHOICE_FACTOR = 0x9E3779B97F4A7C15
_WORDS = struct.Struct("<QQQ")
_WORD = struct.Struct("<Q")


@attrs.define(eq=False)
class NullExecutor:
    """Keeps rows as a real executor does, so that an inconsistent step is found here, too."""

    settings: EngineSettings
    rank: int
    _pause: Pause
    name: str = attrs.field(default="null", init=False)
    _batch: InputBatch | None = attrs.field(default=None, init=False)
    _vocab_size: int = attrs.field(default=0, init=False)

    def load(self, progress: Progress) -> WorkerReady:
        """Read `config.json` alone."""
        limits = load_model_limits(self.settings.model)
        plan = plan_kv(self.settings, model_len=limits.max_model_len, token_bytes=0)
        self._vocab_size = limits.vocab_size
        self._batch = InputBatch(
            rows_max=self.settings.max_num_seqs,
            blocks=plan.blocks,
            block_tokens=self.settings.block_tokens,
            vocab_size=limits.vocab_size,
            hidden_size=limits.hidden_size,
        )
        progress(BootPhase.START, 1.0)  # there is nothing to load
        config = (pathlib.Path(self.settings.model) / CONFIG_FILE).read_bytes()
        revision = f"null {REVISION}{self.settings.revision}"
        identity = hashlib.sha256(config + revision.encode()).hexdigest()
        return plan.ready(limits, f"null-{identity[:16]}")

    def execute(self, step: Step, wait_mask: WaitMask) -> StepResult:
        """Wait `null_step_s`, then hash a token for each row that samples."""
        assert self._batch is not None, "load comes first"
        inputs = self._batch.take_step(step)
        self._name_embeds(inputs)
        self._pause(self.settings.null_step_s)
        mask = wait_mask() if step.masked else None
        tokens = [
            null_token(
                (sampling.parameters.seed + sampling.parameters.choice * _CHOICE_FACTOR) % 2**64,
                sampling.position,
                inputs.token_ids[sampling.token_index],
                vocab_size=self._vocab_size,
                allowed=_allowed(step, mask, sampling, self._vocab_size) if mask else None,
            )
            for sampling in inputs.samplings
        ]
        lengths = {s.row: len(self._batch.rows[s.row].token_ids) for s in inputs.samplings}
        self._batch.finish_step(step, tokens)
        if self.rank != 0:
            return StepResult(step.number, [], [])
        result = StepResult(step.number, list(lengths), tokens)
        return with_null_logprobs(result, inputs, lengths, self._vocab_size)

    def _name_embeds(self, inputs: StepInputs) -> None:
        """A hash of each embedding takes the place of its token's id."""
        assert self._batch is not None
        for span in inputs.embeds:
            size = self._batch.row_bytes(span.dtype)
            for place, begin in enumerate(range(0, len(span.data), size), span.token_index):
                inputs.token_ids[place] = zlib.crc32(span.data[begin : begin + size])


def null_token(
    seed: int, position: int, previous: int, *, vocab_size: int, allowed: list[int] | None = None
) -> int:
    """The token at output index `position` after token `previous`.

    One of `allowed`, or of all ids but the first eight (of all, in a vocabulary that small).
    """
    words = _WORDS.pack(seed, position, previous)
    number: int = _WORD.unpack(hashlib.blake2b(words, digest_size=8).digest())[0]
    if allowed:
        return allowed[number % len(allowed)]
    first = SPECIAL_IDS if vocab_size > SPECIAL_IDS else 0
    return first + number % (vocab_size - first)


def _allowed(step: Step, mask: Mask, sampling: Sampling, vocab_size: int) -> list[int] | None:
    if sampling.row not in step.masked:
        return None
    columns = -(-vocab_size // 32) * 4
    begin = step.masked.index(sampling.row) * columns
    words = mask.words[begin : begin + columns]
    return [i for i in range(vocab_size) if words[i // 8] >> (i % 8) & 1]


def null_logprob(index: int, token_id: int) -> float:
    """Logprob of a token at an index of its row; a multiple of 1/16, exact in float32."""
    return -((index * 31 + token_id * 7) % 512 + 1) / 16


def null_rows(
    row: int, first: int, token_ids: Sequence[int], alternatives: int, *, vocab_size: int
) -> RowLogprobs:
    """Successive tokens of a row; their alternatives are the ids that follow them."""
    alternatives = min(alternatives, vocab_size)
    ids, values, ranks = [], [], []
    for index, token_id in enumerate(token_ids, first):
        for column in [0, *range(alternatives)]:
            ids.append((token_id + column) % vocab_size)
            values.append(null_logprob(index, ids[-1]))
        ranks.append(1 + index % 5)
    return RowLogprobs(
        row=row,
        first=first,
        width=1 + alternatives,
        token_ids=struct.pack(f"<{len(ids)}i", *ids),
        logprobs=struct.pack(f"<{len(ids)}f", *values),
        ranks=struct.pack(f"<{len(ranks)}i", *ranks),
    )


def with_null_logprobs(
    result: StepResult, inputs: StepInputs, lengths: dict[int, int], vocab_size: int
) -> StepResult:
    """The result with what its rows asked for; `lengths` are theirs before they sampled."""
    for span in inputs.prompt_spans:
        result.logprobs.append(
            null_rows(span.row, span.first, span.targets, span.alternatives, vocab_size=vocab_size)
        )
    for sampling, token_id in zip(inputs.samplings, result.token_ids, strict=True):
        if sampling.parameters.logprobs is not None:
            first, count = lengths[sampling.row], sampling.parameters.logprobs
            result.logprobs.append(
                null_rows(sampling.row, first, [token_id], count, vocab_size=vocab_size)
            )
    return result
