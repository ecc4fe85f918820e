"""What both protocols share: harmless values, templates' roles, contents, sampling names."""

import pytest

from triolet.api.errors import ApiError
from triolet.api.openai.prompt_fields import (
    check_model,
    read_content,
    read_message,
    sampling_params,
    split_runtime,
)
from triolet.api.schema.fields import Fields


def test_developer_is_system_to_a_template() -> None:
    message = Fields({"role": "developer", "content": [{"type": "text", "text": "a"}]})
    assert read_message(message) == {"role": "system", "content": "a"}


@pytest.mark.parametrize("content", [None, 3, {"type": "text"}])
def test_contents_of_other_types_are_refused(content: object) -> None:
    with pytest.raises(ApiError, match="content"):
        read_content(Fields({"content": content}, "m"))


def test_absent_values_leave_defaults() -> None:
    options, extensions = split_runtime({})
    assert extensions == {}
    assert not options.token_ids


def test_sampling_errors_carry_the_protocols_name() -> None:
    with pytest.raises(ApiError) as caught:
        sampling_params({"max_tokens": 0}, {"max_tokens": "limit"})
    assert caught.value.param == "limit"


def test_a_long_model_name_is_cut_in_the_answer() -> None:
    with pytest.raises(ApiError) as caught:
        check_model("x" * 10_000, "toy")
    assert len(caught.value.message) < 300
