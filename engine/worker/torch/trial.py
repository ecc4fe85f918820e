"""Trial of a loaded model on a GPU: one prompt whole and then in pieces, before it says READY.

For two reasons. A GPU's libraries load a kernel when it is first called, which took longer than the
half second after which a silent step is taken for a hang; so each way to sample is gone here once.
And that a library's kernel treats all rows of a tile alike is nowhere promised: where it does not,
the pieces have other logprobs than the whole, and the engine does not claim to be bitwise.
"""

from collections.abc import Callable, Sequence

from ...step_messages import Mask, NewRow, RowLogprobs, RowSampling, Step, StepResult
from ..executor_interface import WaitMask

# Beyond one tile of 128; the pieces begin at other places of theirs than the whole does.
PROMPT_TOKENS = 150
PIECES = (1, 60, PROMPT_TOKENS - 61)
GREEDY = RowSampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, prompt_logprobs=2)
SAMPLED = RowSampling(
    temperature=0.8,
    top_k=3,
    top_p=0.9,
    min_p=0.01,
    seed=1,
    repetition_penalty=1.1,
    presence_penalty=0.1,
    min_tokens=1,
    suppressed_until_min=[1],
    logit_bias=[(0, 0.5)],
    allowed_token_ids=[0, 1],
    logprobs=2,
    prompt_logprobs=2,
)


def is_same_in_pieces(
    run: Callable[[Step, WaitMask], StepResult], *, vocab_size: int, tokens: int, block_tokens: int
) -> bool:
    """Whether a prompt's logprobs are the same bits however it is cut.

    The prompt has at most `tokens`, the KV memory's; `run` holds no rows, before and afterwards.
    """
    count = min(PROMPT_TOKENS, tokens)
    prompt = [(7 * index * index + 3 * index) % vocab_size for index in range(count)]
    blocks = list(range(-(-count // block_tokens)))

    def scores(sampling: RowSampling, pieces: Sequence[int]) -> list[tuple[bytes, ...]]:
        row = NewRow(
            row=0,
            token_ids=prompt,
            prompt_tokens=count,
            computed_tokens=0,
            block_ids=blocks,
            sampling=sampling,
        )
        found: list[RowLogprobs] = []
        done = 0
        for piece in pieces:
            done += piece
            step = Step(
                number=0,
                new=[row] if done == piece else [],
                rows=[0],
                token_counts=[piece],
                samples=[done == count],
                masked=[0] if done == count else [],
            )
            found += run(step, lambda: _all_allowed(vocab_size)).logprobs
        run(Step(number=0, finished=[0]), lambda: _all_allowed(vocab_size))
        return [
            _positions([(item.width, item.token_ids) for item in found], count - 1),
            _positions([(item.width, item.logprobs) for item in found], count - 1),
        ]

    pieces = PIECES if count == PROMPT_TOKENS else (1, count - 1) if count > 1 else (1,)
    return scores(GREEDY, (count,)) == scores(SAMPLED, pieces)


def _positions(found: Sequence[tuple[int, bytes]], count: int) -> tuple[bytes, ...]:
    """Values of each of the prompt's `count` positions, so many 32-bit numbers for each."""
    rows = []
    for width, data in found:
        rows += [data[at : at + 4 * width] for at in range(0, len(data), 4 * width)]
    return tuple(rows[:count])


def _all_allowed(vocab_size: int) -> Mask:
    return Mask(0, bytes([255]) * (-(-vocab_size // 32) * 4))
