"""What clients see of each error: a code, whether to retry, and a sentence that names the fault."""

import pytest

from triolet.engine import errors

EXAMPLES = [
    (errors.InvalidParameter("top_p", "must be at most 1"), "invalid_parameter", False, "top_p"),
    (errors.PromptTooLong(900, 512), "context_length_exceeded", False, "511"),
    (errors.EngineDied("engine 0", "was killed by SIGKILL"), "engine_died", True, "SIGKILL"),
    (errors.StepFailed(7, 2, "ValueError: x"), "step_failed", True, "worker 2"),
    (errors.StepTimeout(7, 1.5, (0, 2)), "step_timeout", True, "within 1.5 s from worker 0, 2"),
    (errors.WorkersDisagree(("a", "b")), "workers_disagree", False, "a, b"),
    (errors.ModelFolderError("/m", "has no config.json"), "model_folder", False, "config.json"),
]


@pytest.mark.parametrize(("error", "code", "retryable", "words"), EXAMPLES)
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
