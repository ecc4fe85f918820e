"""Messages and errors: each class survives the codec; each error has a code and a sentence."""

import attrs
import msgspec
import pytest

from triolet.engine import errors, messages, step_messages
from triolet.engine.config import EngineSettings
from triolet.engine.sampling_params import SamplingParams
from triolet.nurseries.processes.watched import Watch
from triolet.transports.codec import Codec, MalformedMessage

EXAMPLES: list[object] = [
    messages.AddRequest(
        request_id="r1",
        attempt=1,
        prompt_token_ids=[1, 2],
        sampling=SamplingParams(seed=3, top_p=1.0),
    ),
    messages.AbortRequests([messages.RequestKey("r1", 1)]),
    messages.GrantCredit([messages.Grant("r1", 1, None), messages.Grant("r2", 2, 64)]),
    messages.Resync([messages.LiveRequest("r1", 1, 5, 64)]),
    messages.UtilityCall(1, messages.Utility.STATISTICS),
]
REPLIES: list[object] = [
    messages.StepOutputs(
        3,
        [
            messages.RequestOutput(
                request_id="r1",
                attempt=1,
                first_index=0,
                token_ids=[5],
                finish_reason=messages.FinishReason.STOP,
            )
        ],
        [2, 7],
        [0, 5],
        [11, 12],
    ),
    messages.StatisticsReport(messages.EngineStatistics(step=3), 7),
    messages.ResyncReply([messages.RequestKey("r1", 1)]),
    messages.UtilityReply(1, "{}"),
]
CONTROL: list[object] = [
    messages.FrontendMembership(1, [messages.FrontendAddress(0, 1, "ipc://@a", "ipc://@b")]),
    messages.Drain(),
    messages.TreeRequest(9),
    Watch(3),
]


@pytest.mark.parametrize(
    ("family", "examples"),
    [
        (messages.FRONTEND_TO_ENGINE, EXAMPLES),
        (messages.ENGINE_TO_FRONTEND, REPLIES),
        (messages.ROOT_TO_ENGINE, CONTROL),
    ],
)
def test_a_family_crosses_the_wire_whole(family: tuple[type, ...], examples: list[object]) -> None:
    codec = Codec(*family)
    assert {type(example) for example in examples} == set(family)
    for example in examples:
        assert codec.decode([bytes(frame) for frame in codec.encode(example)]) == example


def test_out_of_range_parameters_do_not_cross_the_wire() -> None:
    codec = Codec(*messages.FRONTEND_TO_ENGINE)
    frames = [bytes(frame) for frame in codec.encode(EXAMPLES[0])]
    one, two = msgspec.msgpack.encode(1.0), msgspec.msgpack.encode(2.0)
    body = frames[0].replace(b"\xa5top_p" + one, b"\xa5top_p" + two)
    assert body != frames[0]
    with pytest.raises(MalformedMessage):
        codec.decode([body])


def test_settings_cross_as_plain_data() -> None:
    init = messages.EngineInit(
        run_id="ab",
        rank=0,
        epoch=1,
        settings=EngineSettings(model="m"),
        membership=messages.FrontendMembership(0, []),
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(init), type=messages.EngineInit) == init


def test_columns_of_different_lengths_do_not_cross_the_wire() -> None:
    codec = Codec(*messages.ENGINE_TO_FRONTEND)
    whole = messages.StepOutputs(1, [], [1], [2], [3])
    (frame,) = codec.encode(whole)
    fields = msgspec.msgpack.decode(bytes(frame)[1:])
    fields["indices"].append(3)
    with pytest.raises(MalformedMessage, match="differ in length"):
        codec.decode([bytes(frame)[:1] + msgspec.msgpack.encode(fields)])


SAMPLING = step_messages.RowSampling(temperature=0.5, top_k=3, top_p=0.9, min_p=0.0, seed=1)
ASKS_FOR_ALL = attrs.evolve(
    SAMPLING, logit_bias=[(3, -0.5)], allowed_token_ids=[1], bad_words=[[1, 2], [3]], logprobs=0
)

LOGPROBS = step_messages.RowLogprobs(
    row=0, first=5, width=2, token_ids=b"12345678", logprobs=b"87654321", ranks=b"1234"
)


def test_step_and_mask_cross_whole() -> None:
    codec = Codec(*step_messages.CORE_TO_WORKER)
    step = step_messages.Step(
        number=4,
        finished=[2],
        new=[
            step_messages.NewRow(
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
    for message in (step, step_messages.Mask(4, b"\xff\x00\x00\x00")):
        assert codec.decode([bytes(frame) for frame in codec.encode(message)]) == message


def test_answers_cross_whole() -> None:
    codec = Codec(*step_messages.WORKER_TO_CORE)
    for message in (
        step_messages.StepResult(4, [0], [17], 0.002),
        step_messages.StepResult(4, [0], [17], 0.002, [LOGPROBS], [(3, "logits are not numbers")]),
        step_messages.StepFailure(4, 1, "Traceback …"),
    ):
        assert codec.decode([bytes(frame) for frame in codec.encode(message)]) == message


EXAMPLES_OF_ERRORS = [
    (errors.InvalidParameter("top_p", "must be at most 1"), "invalid_parameter", False, "top_p"),
    (errors.PromptTooLong(900, 512), "context_length_exceeded", False, "context length is 512"),
    (errors.EngineDied("engine 0", "was killed by SIGKILL"), "engine_died", True, "SIGKILL"),
    (errors.StepFailed(7, 2, "ValueError: x"), "step_failed", True, "worker 2"),
    (errors.StepTimeout(7, 1.5, (0, 2)), "step_timeout", True, "within 1.5 s from worker 0, 2"),
    (errors.WorkersDisagree(("a", "b")), "workers_disagree", False, "a, b"),
    (errors.ModelFolderError("/m", "has no config.json"), "model_folder", False, "config.json"),
]


@pytest.mark.parametrize(("error", "code", "retryable", "words"), EXAMPLES_OF_ERRORS)
def test_each_error_says_what_and_whether_to_retry(
    error: errors.EngineError, code: str, retryable: bool, words: str
) -> None:
    assert (error.code, error.retryable) == (code, retryable)
    assert words in str(error)


def test_an_error_keeps_its_cause_and_its_notes() -> None:
    def die() -> None:
        error = errors.EngineDied("engine 1", "exited")
        error.add_note("while it drained")
        raise error from OSError("gone")

    with pytest.raises(errors.EngineDied) as caught:
        die()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__notes__ == ["while it drained"]
