"""Every message class survives the codec with its types, and optional fields stay optional."""

import msgspec
import pytest

from triolet.engine import messages
from triolet.engine.config import EngineSettings
from triolet.engine.sampling_params import SamplingParams
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
