"""The engine contract on the in-process engine and on real processes, and under spoiled ADDs."""

import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import attrs
import msgspec
import pytest
import trio

from triolet.engine.messages import (
    FRONTEND_TO_ENGINE,
    AbortRequests,
    AddRequest,
    FinishReason,
    RequestKey,
)
from triolet.fuzz.drawing import draw_message, mutate, mutate_json
from triolet.tests.contracts.engine import (
    CHECKS,
    DEADLINE_S,
    Caller,
    OpenEngine,
    Stream,
    add_request,
)
from triolet.tests.contracts.engines import inproc_engine, process_engine, write_sizes
from triolet.tests.leaks import check_no_leaks
from triolet.transports.array import Frame
from triolet.transports.codec import Codec, MalformedMessage
from triolet.transports.links.link_header import LinkSettings

# All checks one after another, the start of the processes included, on a busy machine.
PROCESSES_S = 240.0


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_engine_contract_in_process(
    check: Callable[[OpenEngine], Awaitable[None]], tmp_path: pathlib.Path
) -> None:
    with check_no_leaks():
        await check(partial(inproc_engine, write_sizes(tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
async def test_engine_contract_on_processes(workers: int, tmp_path: pathlib.Path) -> None:
    """One engine for all checks: what a check leaves behind, the next one trips over."""
    with check_no_leaks(), trio.fail_after(PROCESSES_S):
        async with process_engine(write_sizes(tmp_path), workers) as caller:

            @asynccontextmanager
            async def same_engine() -> AsyncIterator[Caller]:
                yield caller

            for check in CHECKS:
                try:
                    await check(same_engine)
                except BaseException as error:
                    error.add_note(f"in {check.__name__}")
                    raise


SPOILED = 400
GOOD = "the good one, whose name no spoiling hits"


@attrs.frozen
class Outcome:
    """What an engine can read of one ADD: it is answered under `key`, or nobody is."""

    key: RequestKey | None
    is_whole: bool = False


class SpoilingCodec(Codec):
    """Spoils every ADD but the good one, and says what that has made of it."""

    def __init__(self, seed: int) -> None:
        super().__init__(*FRONTEND_TO_ENGINE)
        self.chance = Random(seed)
        self.outcomes: list[Outcome] = []
        self.names: set[str] = set()

    def encode(self, message: object, room: int = 0) -> list[Frame]:
        frames = super().encode(message, room)
        if isinstance(message, AddRequest) and message.request_id != GOOD:
            head = bytes(frames[0])
            frames[0] = bytearray(head[: room + 1] + self._spoil(head[room + 1 :]))
            outcome = self._outcome(frames, room)
            if outcome.key is not None and outcome.key.request_id in self.names:
                # Two of one name: nobody could tell whose answer is whose.
                frames[0] = bytearray(head)
                outcome = self._outcome(frames, room)
            if outcome.key is not None:
                self.names.add(outcome.key.request_id)
            self.outcomes.append(outcome)
        return frames

    def _spoil(self, data: bytes) -> bytes:
        """Its bytes; or its fields, so that it stays msgpack."""
        if self.chance.random() < 0.5:
            return mutate(self.chance, data)
        fields = mutate_json(self.chance, msgspec.msgpack.decode(data))
        try:
            return msgspec.msgpack.encode(fields)
        except (OverflowError, UnicodeEncodeError):
            return data  # no message can hold that

    def _outcome(self, frames: list[Frame], room: int) -> Outcome:
        try:
            message = super().decode(frames, room)
        except MalformedMessage as error:
            return Outcome(error.known if isinstance(error.known, RequestKey) else None)
        assert isinstance(message, AddRequest)
        return Outcome(RequestKey(message.request_id, message.attempt), is_whole=True)


def draw_add(chance: Random, number: int) -> AddRequest:
    """Half of them could be served, the others may have any fields. No two names are alike."""
    name = f"spoiled {number} {chance.getrandbits(64):x}"
    if chance.random() < 0.5:
        return add_request(name, tokens=2)
    drawn: AddRequest = draw_message(chance, AddRequest)
    return attrs.evolve(drawn, request_id=name)


def expect(caller: Caller, key: RequestKey) -> Stream:
    """Whatever the spoiling has called it, what comes for it is taken."""
    request = attrs.evolve(add_request(key.request_id), attempt=key.attempt)
    stream = caller.streams[key.request_id] = Stream(request)
    return stream


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_spoiled_add_is_answered_and_harms_nobody(
    tmp_path: pathlib.Path, seed: int
) -> None:
    codec, chance = SpoilingCodec(seed), Random(seed)
    # The contract's own links break at a few messages, and a break loses what is asked then.
    link = LinkSettings()
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with inproc_engine(write_sizes(tmp_path), codec, link) as caller:
            expected = await caller.run(GOOD, tokens=100)
            good = caller.add(GOOD, tokens=100)
            misread: list[Stream] = []
            for number in range(SPOILED):
                caller.send(draw_add(chance, number))
                outcome = codec.outcomes[-1]
                if outcome.key is not None and not outcome.is_whole:
                    misread.append(expect(caller, outcome.key))
                if number % 20 == 0:
                    await caller.counts()  # all that was sent before has been applied
            await caller.until(lambda: all(stream.end is not None for stream in misread))
            for stream in misread:
                assert stream.end is not None
                assert stream.end.finish_reason is FinishReason.ERROR
                assert stream.end.error_code in ("invalid_request", "invalid_parameter")
            await caller.until(lambda: good.end is not None)
            assert good.token_ids == expected
            keys = [outcome.key for outcome in codec.outcomes if outcome.key is not None]
            caller.streams.clear()
            caller.send(AbortRequests(keys))
            await caller.until_quiet()
            assert min(len(misread), len(keys) - len(misread)) > SPOILED / 8, "both were met"
