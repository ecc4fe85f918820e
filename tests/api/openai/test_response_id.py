"""An id tells its frontend, and only one that we may have drawn tells any."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triolet.api.openai.response_id import FRONTENDS_MAX, IdSource, frontend_of, response_id_of

RANDOM = "0123456789abcdef" * 2


@given(st.integers(0, FRONTENDS_MAX - 1))
def test_the_frontend_can_be_read_back(frontend: int) -> None:
    assert frontend_of(response_id_of(frontend, RANDOM)) == frontend


@pytest.mark.parametrize(
    "response_id",
    ["", "resp_0", f"resp_{RANDOM}", f"resp_+1{RANDOM}", f"resp_0A{RANDOM}", f"resp_01{RANDOM}\n",
     f"msg_01{RANDOM}", f"resp_01{RANDOM}0", f"resp_١١{RANDOM}"],
)  # fmt: skip
def test_what_we_did_not_draw_has_none(response_id: str) -> None:
    assert frontend_of(response_id) is None


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    frontend_of(text)


def test_each_draw_is_another_one() -> None:
    # More than are drawn from the system at once.
    ids = IdSource(7)
    drawn = [ids.draw_response_id() for _ in range(1000)]
    assert {frontend_of(response_id) for response_id in drawn} == {7}
    others = [ids.draw("cmpl").removeprefix("cmpl_") for _ in range(1000)]
    assert {len(digits) for digits in others} == {32}
    assert len({ids.draw_request_id() for _ in range(1000)}) == 1000
    assert len({response_id[-32:] for response_id in drawn} | set(others)) == 2000
