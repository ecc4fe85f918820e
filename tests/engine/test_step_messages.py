"""A step and its answers survive the codec with their types."""

import attrs

from triolet.engine import step_messages as messages
from triolet.transports.codec import Codec

SAMPLING = messages.RowSampling(temperature=0.5, top_k=3, top_p=0.9, min_p=0.0, seed=1)
ASKS_FOR_ALL = attrs.evolve(
    SAMPLING, logit_bias=[(3, -0.5)], allowed_token_ids=[1], bad_words=[[1, 2], [3]], logprobs=0
)

LOGPROBS = messages.RowLogprobs(
    row=0, first=5, width=2, token_ids=b"12345678", logprobs=b"87654321", ranks=b"1234"
)


def test_step_and_mask_cross_whole() -> None:
    codec = Codec(*messages.CORE_TO_WORKER)
    step = messages.Step(
        number=4,
        finished=[2],
        new=[
            messages.NewRow(
                row=0,
                token_ids=[1, 2, 3],
                prompt_tokens=2,
                computed_tokens=0,
                block_ids=[7],
                sampling=sampling,
            )
            for sampling in (SAMPLING, ASKS_FOR_ALL)
        ],
        grown=[(1, [8, 9])],
        rows=[0, 1],
        token_counts=[3, 1],
        samples=[True, True],
    )
    for message in (step, messages.Mask(4, b"\xff\x00\x00\x00")):
        assert codec.decode([bytes(frame) for frame in codec.encode(message)]) == message


def test_answers_cross_whole() -> None:
    codec = Codec(*messages.WORKER_TO_CORE)
    for message in (
        messages.StepResult(4, [0], [17], 0.002),
        messages.StepResult(4, [0], [17], 0.002, [LOGPROBS], [(3, "logits are not numbers")]),
        messages.StepFailure(4, 1, "Traceback …"),
    ):
        assert codec.decode([bytes(frame) for frame in codec.encode(message)]) == message
