"""A small part of `python -m tests.structured`: some forms of each kind, of the bundled model."""

import pytest
import trio

import triolet
from triolet.tests.structured.check import Verdict, ask
from triolet.tests.structured.forms import Form, all_forms

DEADLINE_S = 120.0


def test_there_are_forms_enough_and_they_judge() -> None:
    forms = all_forms()
    assert len(forms) >= 200
    assert len({form.name for form in forms}) == len(forms)
    assert not any(form.matches('"no such answer') for form in forms if form.name[0] == "s")


@pytest.mark.slow
async def test_every_answer_has_the_form_that_was_asked_for() -> None:
    forms, verdicts = all_forms()[::8], list[Verdict]()

    async def ask_one(runtime: triolet.Runtime, place: int, form: Form) -> None:
        verdicts.append(await ask(runtime, form, place))

    with trio.fail_after(DEADLINE_S):
        async with triolet.open_runtime() as runtime, trio.open_nursery() as nursery:
            for place, form in enumerate(forms):
                nursery.start_soon(ask_one, runtime, place, form)
    assert len(verdicts) == len(forms)
    assert [verdict for verdict in verdicts if not verdict.is_valid] == []
