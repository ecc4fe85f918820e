"""Short form of `python -m tests.hostile`, and what its judges find wrong."""

import pytest
import trio

from ..end_to_end.server import DEADLINE_S
from .campaign import HostileOptions, HostileReport, run_hostile
from .inputs import all_inputs, matches

# The command draws 10 000.
FORMS = 30


@pytest.mark.slow
async def test_reported_inputs_and_drawn_forms_harm_nobody() -> None:
    said: list[str] = []
    with trio.fail_after(3 * DEADLINE_S):
        report = await run_hostile(HostileOptions(forms=FORMS), said.append)
    assert report.is_green, list(report.lines())
    assert sum(report.counts.values()) > FORMS + len(all_inputs())


def answer(text: str, reason: str = "stop") -> dict[str, object]:
    return {"choices": [{"finish_reason": reason, "message": {"content": text}}]}


def test_a_number_of_other_digits_is_found() -> None:
    judge = matches({"enum": [175928847299117063]})
    assert judge(answer("175928847299117063")) == ""
    assert "violates" in judge(answer("175928847299117056"))
    assert judge(answer("1759", reason="length")) == "", "was cut"


def test_inputs_have_names_of_their_own() -> None:
    given = [(each.name, each.request.surface, str(each.then)) for each in all_inputs()]
    assert len(set(given)) == len(given)


def test_a_report_of_nothing_is_not_green() -> None:
    assert not HostileReport().is_green
    assert HostileReport(streams=1).is_green
    report = HostileReport(streams=1)
    report.count("form", 500, "failed")
    assert not report.is_green
    assert "1 violations" in [*report.lines()][-1]
