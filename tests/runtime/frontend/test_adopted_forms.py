"""Forms that a journal brings back are checked before an engine gets them; nothing else waits."""

import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from triolet.engine.errors import InvalidParameter
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.fuzz.doubles.bed import Bed
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.errors import FormsUnavailable
from triolet.runtime.frontend.client_tasks import run_adopted_forms
from triolet.runtime.runtime import Runtime

from .test_adoption import KINDS, adopted, begun, open_journaled, read
from .test_successor import until

FORM = StructuredOutputs.grammar("start: /[a-z ]*/")
FORMED = attrs.evolve(KINDS["plain"], structured_outputs=FORM)
STREAMS: dict[str, SamplingParams] = {"formed": FORMED, "plain": KINDS["plain"]}


@attrs.define(eq=False)
class Checker:
    """Waits for its verdict; `error` is that."""

    error: InvalidParameter | FormsUnavailable | None = None
    asked: list[tuple[StructuredOutputs, str]] = attrs.field(factory=list)
    verdict: trio.Event = attrs.field(factory=trio.Event)

    async def check(self, form: StructuredOutputs, principal: str) -> None:
        """See `FormChecker`."""
        self.asked.append((form, principal))
        await self.verdict.wait()
        if self.error is not None:
            raise self.error


@asynccontextmanager
async def next_life(bed: Bed, checker: Checker) -> AsyncIterator[tuple[Runtime, dict[str, Any]]]:
    async with adopted(bed) as (successor, streams):
        run = partial(run_adopted_forms, successor.client, checker)
        async with open_service(run, name="adopted-forms"):
            yield successor, streams


def lose_engines_of(bed: Bed, frontend: Runtime) -> None:
    """All that have a stream; another one is left."""
    for rank in {entry.peer.rank for entry in frontend.client.ledger.entries() if entry.peer}:
        gone = bed.directory.handle_gone(rank, "was killed by SIGKILL")
        frontend.client.apply_membership(gone)


async def test_a_request_with_a_form_goes_on_when_that_was_checked(
    null_folder: pathlib.Path,
) -> None:
    checker = Checker()
    async with open_journaled(null_folder, engines=3) as bed:
        expected = {
            name: (await bed.answer(name, kind)).token_ids for name, kind in STREAMS.items()
        }
        async with begun(bed, STREAMS), next_life(bed, checker) as (successor, streams):
            lose_engines_of(bed, successor)
            assert (await read(streams["plain"])).token_ids == expected["plain"]
            (entry,) = successor.client.ledger.entries()
            assert (entry.peer, checker.asked) == (None, [(FORM, "")]), "it waits, and is asked for"
            assert successor.client.ledger.replays.next_deadline() == float("inf")
            checker.verdict.set()
            assert (await read(streams["formed"])).token_ids == expected["formed"]
            assert len(checker.asked) == 1


async def test_a_request_that_its_engine_goes_on_with_needs_no_check(
    null_folder: pathlib.Path,
) -> None:
    checker = Checker()
    async with open_journaled(null_folder) as bed:
        expected = (await bed.answer("formed", FORMED)).token_ids
        async with begun(bed, {"formed": FORMED}), next_life(bed, checker) as (_, streams):
            assert (await read(streams["formed"])).token_ids == expected
            assert checker.asked == []


@pytest.mark.parametrize(
    "error",
    [
        InvalidParameter("structured_outputs", "cannot be served"),
        FormsUnavailable("no process is there to check it"),
    ],
)
async def test_a_form_that_is_refused_now_ends_its_request_and_reaches_no_engine(
    null_folder: pathlib.Path, error: InvalidParameter | FormsUnavailable
) -> None:
    checker = Checker(error)
    checker.verdict.set()
    async with (
        open_journaled(null_folder, engines=2) as bed,
        begun(bed, {"formed": FORMED}),
        next_life(bed, checker) as (successor, streams),
    ):
        lose_engines_of(bed, successor)
        with pytest.raises(type(error)):
            await read(streams["formed"])
        assert len(successor.client.ledger) == 0
        assert successor.client.ledger.sent_again == 0


async def test_a_request_whose_client_leaves_is_not_sent_after_its_check(
    null_folder: pathlib.Path,
) -> None:
    checker = Checker()
    async with (
        open_journaled(null_folder, engines=2) as bed,
        begun(bed, {"formed": FORMED}),
        next_life(bed, checker) as (successor, streams),
    ):
        lose_engines_of(bed, successor)
        await until(lambda: bool(checker.asked))
        streams["formed"].close()
        checker.verdict.set()
        await bed.settle()
        assert successor.client.ledger.sent_again == 0
