"""A request as its frontend wants it: the whole output that must come, and how it must end.

The checking worker's tokens are a pure function of the prompt and the sampling, so all of it is
known beforehand, by a slow reading of the stop rules that shares nothing with the engine core.
"""

import attrs

from ...engine.embeddings import PLACEHOLDER_ID, rows_of
from ...engine.messages import AddRequest, FinishReason, RequestKey, RequestOutput
from ...engine.step_messages import RowSampling
from ...transports.array import Array
from .checking_worker import embedding_id, expected_output

# Of embeddings; enough to tell tokens apart.
HIDDEN_SIZE = 2


@attrs.define(eq=False)
class WantedRequest:
    """One attempt; `tokens` is the output that it must get in the end."""

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
        """What names this attempt on the wire."""
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
    """What the checking worker takes for its prompt."""
    embeds = add.prompt_embeds
    if embeds is None:
        return add.prompt_token_ids
    rows = range(embeds.shape[0])
    return [embedding_id(bytes(rows_of(embeds, row, row + 1))) for row in rows]


def make_wanted(
    frontend: str, add: AddRequest, *, model_len: int, vocab_size: int
) -> WantedRequest:
    """What must come out, by a slow and separate reading of the stop rules."""
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
    tokens = expected_output(_prompt_of(add), row_sampling, vocab_size=vocab_size, count=count)
    for number, token_id in enumerate(tokens, 1):
        if number < sampling.min_tokens:
            continue
        if token_id in ends:
            return WantedRequest(frontend, add, tokens[:number], FinishReason.STOP, None)
        if token_id in sampling.stop_token_ids:
            return WantedRequest(frontend, add, tokens[:number], FinishReason.STOP, token_id)
    return WantedRequest(frontend, add, tokens, FinishReason.LENGTH, None)
