"""A short campaign of one poison: every stream is the same, and the deaths are two."""

import pathlib

import pytest
import trio

from triolet.fuzz.chaos.poisoned_frontend import FrontendPoison

from .campaign import Campaign, PoisonOptions

pytestmark = [
    pytest.mark.slow,
    # Of httpx: a body that it was sending when the connection ended under it.
    pytest.mark.filterwarnings("ignore:Async generator .httpx._content:ResourceWarning"),
]


async def test_a_poison_that_is_sent_again_and_again_costs_two_deaths(
    tmp_path: pathlib.Path,
) -> None:
    with trio.fail_after(120):
        options = PoisonOptions(seconds=4, turn_s=2, calm_s=1)
        report = await Campaign(tmp_path, FrontendPoison.TOKENISE, options).run()
    assert report.is_green, report.line()
    assert (report.poisons, report.deaths) == (1, 2)
    assert report.sent > 2
