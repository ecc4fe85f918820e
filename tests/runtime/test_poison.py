"""A prompt that ends its engine, with real processes: it is refused, those beside it are served."""

import itertools
import os
import pathlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from triolet.engine.control_messages import FrontendAddress
from triolet.engine.errors import InvalidParameter
from triolet.engine.sampling_params import SamplingParams
from triolet.engine.structured_outputs import StructuredOutputs
from triolet.fuzz.chaos.fault_plan import POISON_SEED
from triolet.fuzz.chaos.poisoned_forms import FormPoison
from triolet.nurseries.tasks.service import open_service
from triolet.runtime.errors import RequestQuarantined
from triolet.runtime.events import ChildGone, RequestRefused
from triolet.runtime.fleet.engine_fleet import EngineFleet
from triolet.runtime.fleet.fleet_parts import FleetParts
from triolet.runtime.fleet.form_fleet import FormFleet
from triolet.runtime.fleet.membership import FrontendDirectory
from triolet.runtime.forms.form_client import FormClient
from triolet.runtime.frontend.client_tasks import wait_engines
from triolet.runtime.runtime import (
    Runtime,
    make_frontend,
    make_settings,
    open_frontend_hub,
    open_frontend_services,
)
from triolet.runtime.text.input_processor import InputProcessor
from triolet.transports.links.channel import Peer

from ..leaks import check_no_leaks
from .acting import DEADLINE_S, HASTY, Diary, process_of

pytestmark = pytest.mark.slow

# With the poison they fill the engine's rows.
INNOCENT = [(1, 100 + number) for number in range(63)]
TOKENS = 60
# From outside, under load.
KILLS = int(os.environ.get("TRIOLET_POISON_KILLS", "1"))
POISONED_WORKER = "triolet.fuzz.chaos.poisoned_worker"
POISONED_ENGINE = "triolet.fuzz.chaos.poisoned_engine"
POISONED_FORMS = "triolet.fuzz.chaos.poisoned_forms"


@attrs.define(eq=False)
class Bed:
    """A runtime whose engine's worker aborts at the first token of a poison."""

    runtime: Runtime
    fleet: EngineFleet
    diary: Diary

    async def kill(self) -> None:
        """As an operator or a host short of memory might."""
        process_of(self.fleet.processes.ready[0]).send_signal(signal.SIGKILL)

    async def send(
        self,
        *prompt: int,
        tokens: int = 8,
        seed: int = 7,
        form: StructuredOutputs | None = None,
    ) -> list[int]:
        """All tokens of a request; sent when the engine is there."""
        await wait_engines(self.runtime.client, 1, DEADLINE_S)
        params = SamplingParams(
            max_tokens=tokens, seed=seed, ignore_eos=True, structured_outputs=form
        )
        async with self.runtime.generate(list(prompt), params) as stream:
            return (await stream.collect()).token_ids


@asynccontextmanager
async def open_bed(
    folder: pathlib.Path, *, restart_limit: int = 100, **fleets: Any
) -> AsyncIterator[Bed]:
    """`fleets` are fields of `EngineFleet`."""
    settings = make_settings(str(folder), executor="null", null_step_s=0.01, max_num_seqs=64)
    settings = attrs.evolve(settings, supervision=attrs.evolve(HASTY, restart_limit=restart_limit))
    epochs, diary = itertools.count(1), Diary()
    me = Peer("frontend", 0, next(epochs))
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with open_frontend_hub("poison", me) as channel:
            inputs = InputProcessor.load(settings)
            runtime = make_frontend(Runtime, settings, channel, inputs, term=me.epoch)
            directory = FrontendDirectory()
            directory.handle_ready(FrontendAddress(me.rank, me.epoch, *channel.endpoints))
            parts = FleetParts(settings, diary, run_id="poison", epochs=epochs)
            fleet = EngineFleet(
                parts=parts,
                frontends=directory,
                on_membership=runtime.client.apply_membership,
                **fleets,
            )
            forms = FormClient()
            inputs.forms = forms
            form_fleet = FormFleet(
                count=1,
                parts=parts,
                on_link=lambda _, link: forms.handle_link(link),
                module=POISONED_FORMS,
            )
            fleet.processes.kind = attrs.evolve(fleet.processes.kind, ahead=(POISONED_WORKER,))
            async with (
                open_frontend_services(channel, runtime.client),
                open_service(fleet.processes.run, name="engines"),
                open_service(forms.run, name="form-checks"),
                open_service(form_fleet.processes.run, name="forms"),
            ):
                yield Bed(runtime, fleet, diary)


async def send_innocents(bed: Bed, *others: Callable[[], Awaitable[object]]) -> list[list[int]]:
    """The tokens of all innocents, sent at once; `others` begin when all of them run."""
    tokens: dict[int, list[int]] = {}

    async def send(place: int) -> None:
        tokens[place] = await bed.send(*INNOCENT[place], tokens=TOKENS)

    async with trio.open_nursery() as nursery:
        for place in range(len(INNOCENT)):
            nursery.start_soon(send, place)
        statistics = bed.runtime.client.statistics
        while not any(counts.running == len(INNOCENT) for counts in statistics.values()):
            assert len(tokens) < len(INNOCENT), "they were never all there"
            await trio.lowlevel.checkpoint()
        for other in others:
            nursery.start_soon(other)
    return [tokens[place] for place in range(len(INNOCENT))]


async def test_a_prompt_that_ends_its_engine_is_refused_after_two_deaths(
    null_folder: pathlib.Path,
) -> None:
    """Which spend no restart of a sole engine that has one."""
    async with open_bed(null_folder, restart_limit=1) as bed:
        undisturbed = await send_innocents(bed)

        async def send_poison() -> None:
            with pytest.raises(RequestQuarantined):
                await bed.send(5, 13, seed=POISON_SEED)

        assert await send_innocents(bed, send_poison) == undisturbed
        deaths = bed.diary.of(ChildGone)
        assert len(deaths) == 2
        assert all("SIGABRT" in death.cause for death in deaths)

        with pytest.raises(RequestQuarantined) as caught:
            await bed.send(5, 13, seed=POISON_SEED)
        assert not caught.value.retryable
        (refused,) = bed.diary.of(RequestRefused)
        assert bed.runtime.health().refused == [refused.content]
        quarantine = bed.fleet.quarantine
        client = bed.runtime.client
        while client.engines.membership.suspects:
            await client.engines_changed.wait()
        assert quarantine.suspects == {}, "who passed alone is acquitted of company, too"

        for killed in range(1, KILLS + 1):
            assert await send_innocents(bed, bed.kill) == undisturbed
            await bed.diary.wait_for(ChildGone, 2 + killed)
            assert len(quarantine.refused) == 1
            assert client.engines.membership.suspects == {}, "nobody, for a SIGKILL"


@pytest.mark.parametrize("poison", FormPoison)
async def test_a_form_that_ends_who_reads_it_is_refused_and_no_one_else_notices(
    null_folder: pathlib.Path, poison: FormPoison
) -> None:
    form = StructuredOutputs.choice([poison, "other"])
    async with open_bed(null_folder, module=POISONED_ENGINE) as bed:
        undisturbed = await send_innocents(bed)

        async def send_poison() -> None:
            for prompt in (5, 6):  # another prompt does not help it
                with pytest.raises((InvalidParameter, RequestQuarantined)) as caught:
                    await bed.send(prompt, form=form)
                assert not caught.value.retryable

        assert await send_innocents(bed, send_poison) == undisturbed
        deaths = bed.diary.of(ChildGone)
        assert len(deaths) == (0 if poison is FormPoison.CHECK else 2)
        assert all("SIGABRT" in death.cause for death in deaths)
        innocent = await bed.send(5, 6, form=StructuredOutputs.choice(["one", "other"]))
        assert innocent, "a form of its own is served"
