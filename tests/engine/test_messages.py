"""Messages that must not cross the wire; errors, each with a code and a sentence.

That each class survives the codec is what the fuzzer `codec` tries, with all of them.
"""

import msgspec
import pytest

from triolet.engine import errors, messages
from triolet.engine.sampling_params import SamplingParams
from triolet.transports.codec import Codec, MalformedMessage


def test_out_of_range_parameters_do_not_cross_the_wire() -> None:
    codec = Codec(*messages.FRONTEND_TO_ENGINE)
    sampling = SamplingParams(seed=3, top_p=1.0)
    add = messages.AddRequest(
        request_id="r1", attempt=1, prompt_token_ids=[1, 2], sampling=sampling
    )
    frames = [bytes(frame) for frame in codec.encode(add)]
    one, two = msgspec.msgpack.encode(1.0), msgspec.msgpack.encode(2.0)
    body = frames[0].replace(b"\xa5top_p" + one, b"\xa5top_p" + two)
    assert body != frames[0]
    with pytest.raises(MalformedMessage):
        codec.decode([body])


def test_columns_of_different_lengths_do_not_cross_the_wire() -> None:
    codec = Codec(*messages.ENGINE_TO_FRONTEND)
    whole = messages.StepOutputs(1, [], [1], [2], [3])
    (frame,) = codec.encode(whole)
    fields = msgspec.msgpack.decode(bytes(frame)[1:])
    fields["indices"].append(3)
    with pytest.raises(MalformedMessage, match="differ in length"):
        codec.decode([bytes(frame)[:1] + msgspec.msgpack.encode(fields)])


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
